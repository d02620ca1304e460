"""The tables of the answer as text, made once for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalelab.inputs.layout import short_label
from scalelab.inputs.numerals import (
    Interval,
    change,
    duration,
    duration_ends,
    number,
    percent,
    plural,
    probability,
)
from scalelab.kinds.resources import DEVICE_HOURS
from scalelab.recommend.answer.recommendation import (
    BatchPlan,
    OutlookRow,
    Recommendation,
)
from scalelab.recommend.answer.way_rows import Spread, WayRow

Columns = dict[str, list[str]]
"""Columns of cells, the title first, by a name that does not depend on the answer."""


def allocations(result: Recommendation) -> Columns:
    """Return a row per allocation; columns that no row has a value for are left out."""
    rows = result.rows
    columns: Columns = {
        "size": [_last(plural(result.device_word, 2))],
        "time": ["time"],
        "interval": [percent(result.interval)],
        **_spent(result),
        "efficiency": ["efficiency"],
        "next": ["next doubling"],
        "chance": ["chance"],
        "basis": ["basis"],
        "speed": ["samples/s"],
        "tokens": ["tokens/s"],
        "utilization": ["MFU"],
        "nodes": ["nodes"],
        "layout": ["layout"],
        "batch": ["batch"],
    }
    unit = columns[DEVICE_HOURS.name][0]
    for row in rows:
        star = "*" if row.is_baseline else ""
        chance = "" if row.probability is None else probability(row.probability)
        cells = {
            "size": f"{row.world_size}",
            "time": duration(row.time_s.value),
            "interval": duration_ends(row.time_s),
            "efficiency": f"{_efficiency(row)}{star}",
            "next": _next(row, unit),
            "chance": chance,
            "basis": row.basis,
            "speed": number(row.throughput_samples_per_s.value),
            "tokens": _or_nothing(row.throughput_tokens_per_s, number),
            "utilization": _or_nothing(row.flops_utilization, percent),
            "nodes": row.allocation,
            "layout": short_label(row.settings),
            "batch": _batch(row.batch),
        }
        for name, cell in cells.items():
            columns[name].append(cell)
    return {name: cells for name, cells in columns.items() if any(cells[1:])}


def ways_table(rows: Sequence[WayRow]) -> Columns:
    """Return a row per way to train; columns that no row has a value for are left out.

    Devices and batch are columns only where they differ.
    """
    columns: Columns = {
        "way": ["way to train"],
        "settings": ["options"],
        "size": ["devices"],
        "batch": ["global batch"],
        "step": ["step time"],
        "target": ["time to target"],
        "reached": ["reached"],
        "metric": ["final metric"],
        "gap": ["accuracy gap"],
        "staleness": ["staleness"],
        "period": ["period"],
        "bubble": ["bubble"],
        "servers": ["servers"],
    }
    sizes = {row.world_size for row in rows}
    batches = {row.global_batch_size for row in rows}
    for row in rows:
        found = row.final_metric
        cells = {
            "way": row.parallelism,
            "settings": ", ".join(f"{name}={of}" for name, of in row.settings.items()),
            "size": f"{row.world_size}" if len(sizes) > 1 else "",
            "batch": number(row.global_batch_size) if len(batches) > 1 else "",
            "step": _or_empty(row.step_time_s, duration),
            "target": _or_empty(row.time_to_target_s, duration),
            "reached": _reached(row),
            "metric": f"{found.mean:.4g}" if found else "",
            "gap": _gap(row.accuracy_gap),
            "staleness": _staleness(row),
            "period": _or_empty(row.averaging_period, number),
            "bubble": _or_empty(row.bubble_share, percent),
            "servers": _or_empty(row.num_servers, number),
        }
        for name, cell in cells.items():
            columns[name].append(cell)
    return {name: cells for name, cells in columns.items() if any(cells[1:])}


def _reached(row: WayRow) -> str:
    return f"{row.num_reached} of {row.num_evaluated}" if row.num_reached else ""


def _gap(gap: Spread | None) -> str:
    if gap is None:
        return ""
    ends = f" ({gap.lo:+.3f} to {gap.hi:+.3f})" if gap.count > 1 else ""
    return f"{gap.mean:+.3f}{ends}"


def _staleness(row: WayRow) -> str:
    if row.staleness_mean is None:
        return ""
    return f"{row.staleness_mean:.2f} (max {row.staleness_max})"


def _or_empty(value: float | None, written: Callable[[float], str]) -> str:
    return "" if value is None else written(value)


def _or_nothing(value: Interval | None, written: Callable[[float], str]) -> str:
    return "" if value is None else written(value.value)


def _efficiency(row: OutlookRow) -> str:
    share = row.scaling_efficiency
    return "-" if share is None else percent(share.value)


def _batch(batch: BatchPlan) -> str:
    passes = batch.gradient_accumulation_steps
    times = f"x{passes}" if passes > 1 else ""
    return (
        f"{batch.global_batch_size}={batch.local_batch_size}x"
        f"{batch.data_parallel_size}{times}"
    )


def _spent(result: Recommendation) -> Columns:
    """Return what is spent, each resource in the unit of the chosen row's amount."""
    columns: Columns = {}
    for resource, chosen in result.chosen.spent.items():
        # the headline has said that devices are emulated
        word = _last(result.device_hour_word)
        scale, unit = resource.unit(chosen.value, word)
        amounts = [row.amounts.get(resource.name) for row in result.rows]
        cells = ["" if each is None else number(each.value / scale) for each in amounts]
        columns[resource.name] = [unit, *cells]
    return columns


def _next(row: OutlookRow, unit: str) -> str:
    if row.next_time_change is None or row.next_gpu_hours_change is None:
        return ""
    is_doubling = row.next_world_size == 2 * row.world_size
    where = "" if is_doubling else f"at {row.next_world_size}: "
    time, hours = change(row.next_time_change), change(row.next_gpu_hours_change)
    return f"{where}{time} time {hours} {unit}"


def _last(words: str) -> str:
    return words.split()[-1]


def parameters(result: Recommendation) -> Columns:
    """Return the fitted parameters, those that the data leave open included."""
    interval = f"{percent(result.interval)} interval"
    columns: Columns = {
        "parameter": ["parameter"],
        "value": ["value"],
        "interval": [interval],
        "unit": ["unit"],
        "open": ["not identified"],
    }
    for row in result.parameters:
        is_point = row.lo != row.lo  # a law without intervals
        cells = {
            "parameter": f"{row.curve}: {row.name}",
            "value": f"{row.value:.3g}",
            "interval": "" if is_point else f"{row.lo:.3g} to {row.hi:.3g}",
            "unit": row.unit,
            "open": "" if row.is_identified else row.remedy,
        }
        for name, cell in cells.items():
            columns[name].append(cell)
    return columns

"""The tables of the answer as text, made once for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

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
from scalelab.recommend.answer.evidence import Spread, WayRow
from scalelab.recommend.answer.recommendation import (
    BatchPlan,
    OutlookRow,
    Recommendation,
)

# Columns of cells, the title first, by a name that does not depend on the answer
Columns = dict[str, list[str]]


def allocations(result: Recommendation) -> Columns:
    """Return a row per allocation; columns that no row has a value for are left out."""
    rows, spent = result.rows, _spent(result)
    unit = spent[DEVICE_HOURS.name][0]
    columns = {
        "size": [
            _last(plural(result.device_word, 2)),
            *(f"{r.world_size}" for r in rows),
        ],
        "time": ["time", *(duration(row.time_s.value) for row in rows)],
        "interval": [
            percent(result.interval),
            *(duration_ends(row.time_s) for row in rows),
        ],
        **spent,
        "efficiency": ["efficiency", *map(_efficiency, rows)],
        "next": ["next doubling", *(_next(row, unit) for row in rows)],
        "chance": ["chance", *(_cell(row.probability, probability) for row in rows)],
        "basis": ["basis", *(row.basis for row in rows)],
        "speed": [
            "samples/s",
            *(_cell(r.throughput_samples_per_s, number) for r in rows),
        ],
        "tokens": [
            "tokens/s",
            *(_cell(r.throughput_tokens_per_s, number) for r in rows),
        ],
        "utilization": [
            "MFU",
            *(_cell(row.flops_utilization, percent) for row in rows),
        ],
        "nodes": ["nodes", *(row.allocation for row in rows)],
        "layout": ["layout", *(short_label(row.settings) for row in rows)],
        "batch": ["batch", *(_batch(row.batch) for row in rows)],
    }
    return _filled(columns)


def ways_table(rows: Sequence[WayRow]) -> Columns:
    """Return a row per way to train; columns that no row has a value for are left out.

    Devices and batch are columns only where they differ.
    """
    columns = {
        "way": ["way to train", *(row.parallelism for row in rows)],
        "settings": [
            "options",
            *(", ".join(f"{n}={of}" for n, of in row.settings.items()) for row in rows),
        ],
        "size": ["devices", *(f"{row.world_size}" for row in rows)],
        "batch": ["global batch", *(number(row.global_batch_size) for row in rows)],
        "step": ["step time", *(_cell(row.step_time_s, duration) for row in rows)],
        "target": [
            "time to target",
            *(_cell(row.time_to_target_s, duration) for row in rows),
        ],
        "reached": ["reached", *map(_reached, rows)],
        "metric": ["final metric", *(_metric(row.final_metric) for row in rows)],
        "gap": ["accuracy gap", *(_gap(row.accuracy_gap) for row in rows)],
        "staleness": ["staleness", *map(_staleness, rows)],
        "period": ["period", *(_cell(row.averaging_period, number) for row in rows)],
        "bubble": ["bubble", *(_cell(row.bubble_share, percent) for row in rows)],
        "servers": ["servers", *(_cell(row.num_servers, number) for row in rows)],
    }
    for name in ("size", "batch"):
        if len({*columns[name][1:]}) < 2:
            del columns[name]
    return _filled(columns)


def parameters(result: Recommendation) -> Columns:
    """Return the fitted parameters, those that the data leave open included."""
    rows = result.parameters
    return {
        "parameter": ["parameter", *(f"{row.curve}: {row.name}" for row in rows)],
        "value": ["value", *(f"{row.value:.3g}" for row in rows)],
        "interval": [
            f"{percent(result.interval)} interval",
            # a law without intervals has no ends
            *("" if isnan(r.lo) else f"{r.lo:.3g} to {r.hi:.3g}" for r in rows),
        ],
        "unit": ["unit", *(row.unit for row in rows)],
        "open": [
            "not identified",
            *("" if row.is_identified else row.remedy for row in rows),
        ],
    }


def _filled(columns: Columns) -> Columns:
    return {name: cells for name, cells in columns.items() if any(cells[1:])}


def _cell(value: float | Interval | None, written: Callable[[float], str]) -> str:
    if value is None:
        return ""
    return written(value.value if isinstance(value, Interval) else value)


def _reached(row: WayRow) -> str:
    return f"{row.num_reached} of {row.num_evaluated}" if row.num_reached else ""


def _metric(found: Spread | None) -> str:
    return "" if found is None else f"{found.mean:.4g}"


def _gap(gap: Spread | None) -> str:
    if gap is None:
        return ""
    ends = f" ({gap.lo:+.3f} to {gap.hi:+.3f})" if gap.count > 1 else ""
    return f"{gap.mean:+.3f}{ends}"


def _staleness(row: WayRow) -> str:
    if row.staleness_mean is None:
        return ""
    return f"{row.staleness_mean:.2f} (max {row.staleness_max})"


def _efficiency(row: OutlookRow) -> str:
    share = _cell(row.scaling_efficiency, percent) or "-"
    return f"{share}*" if row.is_baseline else share


def _batch(batch: BatchPlan) -> str:
    passes = batch.gradient_accumulation_steps
    times = f"x{passes}" if passes > 1 else ""
    return (
        f"{batch.global_batch_size}={batch.local_batch_size}x"
        f"{batch.data_parallel_size}{times}"
    )


def _spent(result: Recommendation) -> Columns:
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

"""The recommendation as plain lines of text: ASCII, no colour, as wide as asked."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from scalelab.inputs.numerals import (
    change,
    counted,
    device_time,
    device_time_unit,
    duration,
    duration_ends,
    number,
    percent,
    plural,
    probability,
)
from scalelab.recommend.answer.recommendation import (
    BatchPlan,
    OutlookRow,
    ParameterRow,
    Recommendation,
)

_REASONS = {
    "shared_node": "node was shared",
    "loopback_nodes": "nodes on one machine",
    "oversubscribed_cores": "more ranks than cores",
    "uneven_ranks": "uneven ranks",
    "unexpected_placement": "unexpected placement",
    "code_changed": "code changed during the sweep",
    "unsteady_clock": "unsteady clock",
    "out_of_memory": "out of memory",
}
# the first to go when the terminal is narrow
_OPTIONAL = ("next doubling", "efficiency", "basis", "interval")


def answer_text(recommendation: Recommendation, width: int = 80) -> str:
    """Return the answer in full.

    Parameters
    ----------
    recommendation
        The answer.
    width
        Columns of the terminal; the table loses columns, sentences are wrapped.
    """
    blocks = [
        _headline(recommendation, width),
        _table(recommendation, width),
        _remarks(recommendation, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def explain_text(recommendation: Recommendation, width: int = 80) -> str:
    """Return what was fitted, what was left out and why, and the formulas."""
    result = recommendation
    lines = [
        f"Law: {result.law}.  {result.formula}",
        "Samples to a target: S = S_min (1 + (B / B_crit)^a) (after McCandlish et al. "
        "2018; a is batch_exponent).",
        f"Chosen: {result.objective}.",
        f"Efficiency: device-hours against {result.baseline}.",
        *_what_diminishing_means(result),
        "Times exclude start-up, evaluation and checkpoints.",
        *result.unsupported,
    ]
    wrapped = [line for text in lines for line in _wrapped(text, width)]
    return "\n".join([*wrapped, "", *_parameter_lines(result), "", *_left_out(result)])


def _what_diminishing_means(result: Recommendation) -> list[str]:
    if result.knee is None:
        return []
    least = percent(result.knee.marginal_return)
    return [
        f"Returns diminish where the next doubling returns less than {least} of the "
        "speed-up of its devices."
    ]


def _headline(result: Recommendation, width: int) -> list[str]:
    row = result.chosen
    place = f"{_count(result, row.world_size, named=True)} ({_nodes(result, row)})"
    verb = "Use"
    lines = []
    if not result.meets_constraints:
        lines.append(f"Nothing meets {' and '.join(result.limits)}.")
        verb = "Closest:"
    lines.append(f"{verb} {place}, {_batch(row.batch)}")
    details = [f"{name} {value}" for name, value in row.settings.items()]
    if result.learning_rate is not None:
        rate = result.learning_rate
        details.append(f"learning rate {rate.value:.4g} (rule: {rate.rule})")
    if details:
        lines.append(", ".join(details))
    time = f"{duration(row.time_s.value)} [{duration_ends(row.time_s)}]"
    chance = f".  {_chance(result, row)}" if row.probability is not None else ""
    lines.append(f"{time}, {_cost(result, row)}{chance}")
    if not result.meets_constraints:
        lines.append(_alternatives(result))
    return [part for line in lines for part in _wrapped(line, width)]


def _cost(result: Recommendation, row: OutlookRow) -> str:
    price = f", {number(row.cost_usd.value)} usd" if row.cost_usd else ""
    return f"{device_time(row.gpu_hours.value, result.device_hour_word)}{price}"


def _alternatives(result: Recommendation) -> str:
    fastest = min(result.rows, key=lambda row: row.time_s.value)
    cheapest = min(result.rows, key=lambda row: row.gpu_hours.value)
    return "; ".join(
        f"{title}: {_count(result, row.world_size)}, {duration(row.time_s.value)}, "
        f"{device_time(row.gpu_hours.value, result.device_hour_word)}"
        for title, row in (("Fastest", fastest), ("cheapest", cheapest))
    )


def _count(result: Recommendation, count: int, *, named: bool = False) -> str:
    if named and result.device_name and result.device_word == "GPU":
        return f"{count:,} {result.device_name}"
    return counted(count, result.device_word)


def _nodes(result: Recommendation, row: OutlookRow) -> str:
    _, devices = row.allocation.split("x")
    kind = f"{result.node_group} node" if result.node_group else "node"
    return f"{counted(row.num_nodes, kind)} x {devices}"


def _batch(batch: BatchPlan) -> str:
    text = (
        f"global batch {batch.global_batch_size} = {batch.local_batch_size} x "
        f"{batch.data_parallel_size}"
    )
    steps = batch.gradient_accumulation_steps
    return f"{text} x {steps} accumulation steps" if steps > 1 else text


def _chance(result: Recommendation, row: OutlookRow) -> str:
    assert row.probability is not None
    text = probability(row.probability)
    sign = "" if text[0] in "<>" else "= "
    return f"P({', '.join(result.limits)}) {sign}{text}"


def _table(result: Recommendation, width: int) -> list[str]:
    interval = percent(result.interval)
    scale, unit = _hours(result)
    columns = {
        "size": [_last(plural(result.device_word, 2))],
        "time": ["time"],
        "interval": [interval],
        "hours": [unit],
        "cost": ["usd"],
        "efficiency": ["efficiency"],
        "next doubling": ["next doubling"],
        "basis": ["basis"],
    }
    for row in result.rows:
        for name, cell in _cells(result, row, scale, unit).items():
            columns[name].append(cell)
    if not any(row.cost_usd for row in result.rows):
        del columns["cost"]
    for name in _OPTIONAL:
        if _total_width(columns) <= width:
            break
        del columns[name]
    lines = _aligned(list(columns.values()))
    if "efficiency" in columns:
        lines.append(f"* against {result.baseline}")
    return lines


def _hours(result: Recommendation) -> tuple[float, str]:
    """Return the unit of the table's device times: that of the chosen row's."""
    word = _last(result.device_hour_word)
    return device_time_unit(result.chosen.gpu_hours.value, word)


def _cells(
    result: Recommendation, row: OutlookRow, scale: float, unit: str
) -> dict[str, str]:
    following = ""
    if row.next_time_change is not None and row.next_gpu_hours_change is not None:
        hours = f"{change(row.next_gpu_hours_change)} {unit}"
        is_doubling = row.next_world_size == 2 * row.world_size
        where = "" if is_doubling else f"at {row.next_world_size}: "
        following = f"{where}{change(row.next_time_change)} time {hours}"
    mark = ">" if row.is_chosen else " "
    star = "*" if row.is_baseline else " "
    return {
        "size": f"{mark}{row.world_size}",
        "time": duration(row.time_s.value),
        "interval": duration_ends(row.time_s),
        "hours": number(row.gpu_hours.value / scale),
        "cost": number(row.cost_usd.value) if row.cost_usd else "",
        "efficiency": f"{percent(row.scaling_efficiency)}{star}",
        "next doubling": following,
        "basis": row.basis,
    }


def _last(words: str) -> str:
    """Return the last word: the headline has said that devices are emulated."""
    return words.split()[-1]


def _total_width(columns: dict[str, list[str]]) -> int:
    widths = [max(map(len, cells)) for cells in columns.values()]
    return sum(widths) + 2 * (len(widths) - 1)


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: numbers to the right, the last two kinds of text to the left."""
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for cells in zip(*columns, strict=True):
        parts = [
            cell.rjust(width) if _is_number(column[-1]) else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _is_number(text: str) -> bool:
    return any(character.isdigit() for character in text) and "time" not in text


def _remarks(result: Recommendation, width: int) -> list[str]:
    lines = []
    if result.is_emulated:
        lines.append("Emulated: times are declared, nothing here was measured.")
    if result.knee is not None:
        lines.append(_knee(result))
    lines += elsewhere(result)
    lines += [result.price] if result.price else []
    lines += result.notes
    lines += result.unsupported
    if result.next_trial is not None:
        trial = result.next_trial
        hours, word = trial.gpu_hours, result.device_hour_word
        cost = "" if hours is None else f", {device_time(hours, word)}"
        lines.append(
            f"Would change the answer: {_count(result, trial.world_size)} "
            f"({trial.allocation}) x {trial.steps} steps{cost}: {trial.why}."
        )
    lines += _left_out(result)
    return [part for line in lines for part in _wrapped(line, width)]


def elsewhere(result: Recommendation) -> list[str]:
    """Say what each other node group would do for the job, a sentence each."""
    return [
        f"Node group {group} instead: {_count(result, row.world_size)} "
        f"({row.allocation}), {duration(row.time_s.value)}, {_cost(result, row)}"
        f"{'' if row.probability is None else f', {_chance(result, row)}'}."
        for group, row in result.elsewhere.items()
    ]


def _knee(result: Recommendation) -> str:
    knee = result.knee
    assert knee is not None
    largest = result.rows[-1].world_size
    if knee.lo is None:
        return f"No diminishing returns up to {_count(result, largest)}."
    if knee.hi is None:
        where = f"from {_count(result, knee.lo)} on, or later"
    else:
        where = f"at {knee.lo}-{knee.hi} {plural(result.device_word, 2)}"
    return f"Returns diminish {where}: {knee.term}."


def _left_out(result: Recommendation) -> list[str]:
    parts = []
    if result.left_out:
        total, why = _reasons(result.left_out)
        parts.append(
            f"Left out: {total} of {result.num_observations} attempts ({why})."
        )
    if result.left_out_of_convergence:
        total, why = _reasons(result.left_out_of_convergence)
        parts.append(f"Left out of samples to target: {total} ({why}).")
    if result.sweep_gpu_hours is not None:
        cost = device_time(result.sweep_gpu_hours, result.device_hour_word)
        parts.append(f"Sweep cost {cost}.")
    return ["  ".join(parts)] if parts else []


def _reasons(left_out: Mapping[str, int]) -> tuple[int, str]:
    counts = [f"{n} {_REASONS.get(why, why)}" for why, n in left_out.items()]
    return sum(left_out.values()), ", ".join(counts)


def _parameter_lines(result: Recommendation) -> list[str]:
    interval = f"{percent(result.interval)} interval"
    columns: list[list[str]] = [["parameter"], ["value"], [interval], ["unit"], [""]]
    for row in result.parameters:
        cells = _parameter_cells(row)
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return _aligned(columns)


def _parameter_cells(row: ParameterRow) -> tuple[str, ...]:
    bounds = "" if row.lo != row.lo else f"{row.lo:.3g} to {row.hi:.3g}"
    state = "" if row.is_identified else f"open. {row.remedy}"
    name = f"{row.curve}: {row.name}"
    return name, f"{row.value:.3g}", bounds, row.unit, state


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]

"""The recommendation in sentences and in one table."""

from __future__ import annotations

from scalelab.inputs.numerals import (
    Interval,
    change,
    counted,
    device_time,
    device_time_unit,
    duration,
    duration_range,
    number,
    percent,
    probability,
)
from scalelab.recommend.answer.recommendation import (
    BatchPlan,
    Knee,
    NextTrial,
    OutlookRow,
    Recommendation,
)
from scalelab.recommend.answer.text import elsewhere
from scalelab.records.columns import OPTION_PREFIX
from scalelab.report.tables import TextTable


def headline(recommendation: Recommendation) -> str:
    """Answer in a sentence."""
    row = recommendation.chosen
    count = counted(row.world_size, recommendation.device_word)
    hours = device_time(row.gpu_hours.value, recommendation.device_hour_word)
    cost = f", {number(row.cost_usd.value)} USD" if row.cost_usd else ""
    takes = f"the job takes {duration(row.time_s.value)} and {hours}{cost}"
    if recommendation.meets_constraints:
        return f"Use {count}: {takes}."
    limits = " and ".join(recommendation.limits)
    return f"Nothing meets {limits}. Closest is {count}: {takes}."


def details(recommendation: Recommendation) -> tuple[str, ...]:
    """Say what goes with the headline, one sentence each."""
    row = recommendation.chosen
    lines = [
        f"{_where(recommendation)}{_placement(row)}, {_batch(row.batch)}"
        f"{_settings(row)}.",
        f"{percent(recommendation.interval)} interval of the time: "
        f"{duration_range(row.time_s)}; this allocation is {row.basis}.",
    ]
    if row.probability is not None:
        lines.append(
            f"Probability of {' and '.join(recommendation.limits)}: "
            f"{probability(row.probability)}."
        )
    if rate := recommendation.learning_rate:
        rule = "as given" if rate.rule == "none" else f"by the {rate.rule} rule"
        lines.append(f"Learning rate {rate.value:.3g}, {rule}.")
    if knee := recommendation.knee:
        lines.append(_knee(knee, recommendation.device_word))
    lines += elsewhere(recommendation)
    if recommendation.price:
        lines.append(recommendation.price)
    lines.append(f"Chosen by: {recommendation.objective.rstrip('.')}.")
    return tuple(lines)


def _where(recommendation: Recommendation) -> str:
    device = f" on {recommendation.device_name}" if recommendation.device_name else ""
    return f"{recommendation.workload}{device}, " if recommendation.workload else ""


def _placement(row: OutlookRow) -> str:
    nodes = counted(row.num_nodes, "node")
    return nodes if row.num_nodes == 1 else f"{nodes} ({row.allocation})"


def _batch(batch: BatchPlan) -> str:
    steps = batch.gradient_accumulation_steps
    accumulated = f" x {steps} accumulation steps" if steps > 1 else ""
    return (
        f"global batch {batch.global_batch_size:,} = {batch.local_batch_size:,} x "
        f"{batch.data_parallel_size}{accumulated}"
    )


def _settings(row: OutlookRow) -> str:
    return "".join(
        f", {name.removeprefix(OPTION_PREFIX)} {value}"
        for name, value in row.settings.items()
    )


def _knee(knee: Knee, device_word: str) -> str:
    if knee.lo is None:
        return "Returns do not diminish within the allocations considered."
    least = percent(knee.marginal_return)
    if knee.hi is None:
        where = f"somewhere above {counted(knee.lo, device_word)}"
    elif knee.hi == knee.lo:
        where = f"at {counted(knee.lo, device_word)}"
    else:
        where = f"between {knee.lo} and {counted(knee.hi, device_word)}"
    return (
        f"Returns diminish {where}: from there a device added brings less than {least} "
        f"of its share. The cause: {knee.term}."
    )


def next_trial_sentence(trial: NextTrial, recommendation: Recommendation) -> str:
    """Say which measurement would change the answer most, and its price."""
    count = counted(trial.world_size, recommendation.device_word)
    hours, word = trial.gpu_hours, recommendation.device_hour_word
    cost = "" if hours is None else f", {device_time(hours, word)}"
    return (
        f"{count} ({trial.allocation}), {_batch(trial.batch)}, "
        f"{counted(trial.steps, 'step')}{cost}: {trial.why.rstrip('.')}."
    )


def allocation_table(recommendation: Recommendation) -> TextTable:
    """Return one row per allocation, as the terminal answer has them."""
    has_cost = any(row.cost_usd for row in recommendation.rows)
    has_probability = any(row.probability is not None for row in recommendation.rows)
    # the page's badge says that devices are emulated
    scale, hours = device_time_unit(
        recommendation.chosen.gpu_hours.value,
        recommendation.device_hour_word.removeprefix("emulated "),
    )
    columns = (
        recommendation.device_word.removeprefix("emulated ") + "s",
        "time",
        percent(recommendation.interval),
        hours,
        *(["cost (USD)"] if has_cost else []),
        "efficiency",
        "next: time",
        f"next: {hours}",
        *(["P(limits)"] if has_probability else []),
        "basis",
        "nodes",
        "global batch",
    )
    rows = tuple(
        (
            str(row.world_size),
            duration(row.time_s.value),
            duration_range(row.time_s),
            number(row.gpu_hours.value / scale),
            *([_value(row.cost_usd)] if has_cost else []),
            percent(row.scaling_efficiency) + ("*" if row.is_baseline else ""),
            _change(row.next_time_change),
            _change(row.next_gpu_hours_change),
            *([_share(row.probability)] if has_probability else []),
            row.basis,
            row.allocation,
            f"{row.batch.global_batch_size:,}",
        )
        for row in recommendation.rows
    )
    return TextTable(columns=columns, rows=rows)


def _value(interval: Interval | None) -> str:
    return "" if interval is None else number(interval.value)


def _share(share: float | None) -> str:
    return "" if share is None else probability(share)


def _change(share: float | None) -> str:
    return "" if share is None else change(share)


def parameter_table(recommendation: Recommendation) -> TextTable:
    """Return the fitted parameters, those that the data leave open included."""
    rows = tuple(
        (
            row.law,
            row.curve,
            row.name.replace("_", " "),
            f"{row.value:.3g} {row.unit}",
            f"{row.lo:.3g} to {row.hi:.3g}",
            "" if row.is_identified else row.remedy,
        )
        for row in recommendation.parameters
    )
    columns = ("law", "curve", "parameter", "value", "interval", "not pinned down")
    return TextTable(columns=columns, rows=rows)

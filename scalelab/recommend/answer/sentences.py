"""The answer in sentences, made once for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import (
    counted,
    device_time,
    duration,
    duration_ends,
    percent,
    plural,
    probability,
)
from scalelab.inputs.support import Support
from scalelab.plan.memory_limits import limits_in_words
from scalelab.recommend.answer.facts import Part
from scalelab.recommend.answer.recommendation import (
    BatchPlan,
    Knee,
    OutlookRow,
    Recommendation,
)
from scalelab.recommend.answer.way_rows import BASELINE, WayRow
from scalelab.records.columns import OPTION_PREFIX

_REASONS = {
    "shared_node": "other jobs ran on the node",
    "loopback_nodes": "the nodes were on one machine",
    "oversubscribed_cores": "there were more ranks than cores",
    "uneven_ranks": "the nodes held different numbers of ranks",
    "unexpected_placement": "the ranks ran elsewhere than asked",
    "code_changed": "the code changed during the sweep",
    "unsteady_clock": "the node's clock was set during the trial",
    "host_paused": "the node stood still during the trial",
    "rate_disagrees": "the program's own rate differs",
    "superseded_engine": "measured by an engine since found wrong",
    "out_of_memory": "the device's memory was too small",
    "host_out_of_memory": "the node's memory was too small",
    "failed": "the trial failed",
    "sharded order": "with a sharded order they depend on the number of ranks",
}
_OPEN = 8  # the ends of a range of counts that says little lie so many times apart
_LIKELY = 0.5  # chance of a knee up to the last row, or of limits, that is named
_BUSY = "the computer was too busy to keep the declared times"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, and what it is about."""

    part: Part
    text: str


def sentences(result: Recommendation) -> tuple[Sentence, ...]:
    """Return everything that the answer says, apart from its table."""
    return tuple(_sentences(result))


def texts(said: tuple[Sentence, ...], *parts: Part) -> list[str]:
    """Return the sentences about these parts, in the order of the answer."""
    return [sentence.text for sentence in said if sentence.part in parts]


def reason_in_words(reason: str, *, is_emulated: bool = False) -> str:
    """Say why an observation is ignored, for one reason or several.

    >>> reason_in_words("shared_node"), reason_in_words("timed_out, code_changed")
    ('other jobs ran on the node', 'timed out, the code changed during the sweep')
    """
    known = {**_REASONS, "unsteady_clock": _BUSY} if is_emulated else _REASONS
    return ", ".join(
        known.get(each, each.replace("_", " ")) for each in reason.split(", ")
    )


def _sentences(result: Recommendation) -> Iterator[Sentence]:
    def notes(part: Part) -> Iterator[Sentence]:
        yield from (Sentence(part, text) for text in result.said(part))

    row = result.chosen
    yield from (Sentence(Part.USE, text) for text in _use(result))
    if settings := _settings(result):
        yield Sentence(Part.SETTINGS, settings)
    time = f"{duration(row.time_s.value)} [{duration_ends(row.time_s)}]"
    yield Sentence(Part.TAKES, f"{time}, {_spent(result, row)}")
    if row.probability is not None:
        given = f" if {result.condition}" if result.condition else ""
        yield Sentence(Part.CHANCE, f"Chance {_chance(result, row)}{given}.")
    yield from notes(Part.FAILED)
    yield from (
        Sentence(Part.FAILED, text) for text in limits_in_words(result.memory_limits)
    )
    if not result.meets_constraints and result.knee is not None:
        yield Sentence(Part.ALTERNATIVES, _alternatives(result))
    if result.is_emulated:
        emulated = "Emulated: times are declared, nothing here was measured."
        yield Sentence(Part.EMULATED, emulated)
    if result.knee is not None:
        yield Sentence(Part.KNEE, _knee(result, result.knee))
    yield from (Sentence(Part.ELSEWHERE, text) for text in _elsewhere(result))
    if result.price:
        yield Sentence(Part.PRICE, result.price)
    yield Sentence(Part.WHY, f"Why: {result.objective}.")
    for part in (Part.EFFICIENCY, Part.ASSUMPTION, Part.UNANSWERED):
        yield from notes(part)
    if result.next_trial is not None:
        yield Sentence(Part.NEXT_TRIAL, _next_trial(result))
    yield from (Sentence(Part.IGNORED, text) for text in _ignored(result))
    if result.sweep_gpu_hours is not None:
        cost = device_time(result.sweep_gpu_hours, result.device_hour_word)
        yield Sentence(Part.SWEEP_COST, f"Sweep cost {cost}.")


def _use(result: Recommendation) -> Iterator[str]:
    row, verb = result.chosen, "Use"
    if not result.meets_constraints:
        is_likely = row.probability is not None and row.probability >= _LIKELY
        sure = f" with a chance of {percent(result.confidence)}" if is_likely else ""
        yield f"Nothing meets {' and '.join(result.limits)}{sure}."
        verb = "Closest:"
    place = f"{_count(result, row.world_size, named=True)} ({_nodes(result, row)})"
    yield f"{verb} {place}, {_batch(row.batch)}"


def _settings(result: Recommendation) -> str:
    details = _named(result.chosen.settings)
    if rate := result.learning_rate:
        rule = "" if rate.rule == "none" else f" (rule: {rate.rule})"
        details.append(f"learning rate {rate.value:.4g}{rule}")
    return ", ".join(details)


def _named(settings: Mapping[str, Scalar]) -> list[str]:
    return [
        f"{name.removeprefix(OPTION_PREFIX)} {value}"
        for name, value in settings.items()
    ]


def _spent(result: Recommendation, row: OutlookRow) -> str:
    word = result.device_hour_word
    amounts = row.spent.items()
    return ", ".join(each.in_words(amount.value, word) for each, amount in amounts)


def _chance(result: Recommendation, row: OutlookRow) -> str:
    assert row.probability is not None
    chance = probability(row.probability)
    return f"of meeting {' and '.join(result.limits)}: {chance}"


def _alternatives(result: Recommendation) -> str:
    fastest = min(result.rows, key=lambda row: row.time_s.value)
    cheapest = min(result.rows, key=lambda row: row.gpu_hours.value)
    return "; ".join(
        f"{title}: {_count(result, row.world_size)}, {duration(row.time_s.value)}, "
        f"{device_time(row.gpu_hours.value, result.device_hour_word)}"
        f"{'' if row.is_eligible else f' ({row.basis})'}"
        for title, row in (("Fastest", fastest), ("cheapest", cheapest))
    )


def _count(result: Recommendation, count: int, *, named: bool = False) -> str:
    if named and result.device_name and result.device_word in ("GPU", "TPU"):
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


def _elsewhere(result: Recommendation) -> Iterator[str]:
    """Say what each other node group would do for the job, a sentence each."""
    for group, row in result.elsewhere.items():
        chance = "" if row.probability is None else f", chance {_chance(result, row)}"
        yield (
            f"Node group {group} instead: {_count(result, row.world_size)} "
            f"({row.allocation}), {duration(row.time_s.value)}, "
            f"{_spent(result, row)}{chance}."
        )


def _knee(result: Recommendation, knee: Knee) -> str:
    if knee.lo is None:
        largest = result.rows[-1].world_size
        return f"No diminishing returns up to {_count(result, largest)}."
    if knee.probability_in_range < _LIKELY:
        last = _count(result, result.rows[-1].world_size)
        text = f"No sign of diminishing returns up to {last}"
        if knee.lo == result.rows[0].world_size:
            return f"{text}."
        return f"{text}; if they diminish, then not before {knee.lo:,}."
    beyond = {row.basis for row in result.rows if row.world_size > knee.lo}
    if beyond == {Support.NOT_MEASURED}:
        most = _count(result, knee.lo)
        return f"Where returns diminish is open: more than {most} were not measured."
    if knee.hi is None:
        where = f"{_count(result, knee.lo)} or more"
    elif knee.hi == knee.lo:
        where = _count(result, knee.lo)
    else:
        where = f"{knee.lo}-{knee.hi} {plural(result.device_word, 2)}"
        if knee.hi >= _OPEN * knee.lo:
            return f"Where returns diminish is open: at {where}."
    return f"Returns diminish at {where}: {knee.term}."


def what_diminishing_means(result: Recommendation) -> list[str]:
    """Say from where on returns are called diminishing."""
    if result.knee is None:
        return []
    least = percent(result.knee.marginal_return)
    return [
        f"Returns diminish where the next doubling gives less than {least} of the "
        "ideal gain."
    ]


def what_gaps_mean(rows: Sequence[WayRow]) -> list[str]:
    """Say what the accuracy gaps of a table of ways to train are against."""
    if not any(row.accuracy_gap for row in rows):
        return []
    return [
        f"Accuracy gap: final metric minus that of {BASELINE}; mean and range over "
        "the seeds that have such a pair."
    ]


def _next_trial(result: Recommendation) -> str:
    trial = result.next_trial
    assert trial is not None
    hours, word = trial.gpu_hours, result.device_hour_word
    cost = "" if hours is None else f", {device_time(hours, word)}"
    return (
        "The trial that would change the answer most: "
        f"{_count(result, trial.world_size)} ({trial.allocation}), "
        f"{', '.join([_batch(trial.batch), *_named(trial.settings)])}, "
        f"{counted(trial.steps, 'step')}{cost}: {trial.why}."
    )


def _ignored(result: Recommendation) -> Iterator[str]:
    for law, reasons in (
        ("", result.left_out),
        (" for samples to target", result.left_out_of_convergence),
    ):
        if reasons:
            total = sum(reasons.values())
            trials = counted(result.num_observations, "trial")
            why = why_ignored(reasons, is_emulated=result.is_emulated)
            yield f"{total:,} of {trials} ignored{law}: {why}."


def why_ignored(reasons: Mapping[str, int], *, is_emulated: bool = False) -> str:
    """Say why observations are ignored, with their numbers where reasons differ."""
    words = {
        reason_in_words(reason, is_emulated=is_emulated): count
        for reason, count in reasons.items()
    }
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{why} ({count:,})" for why, count in words.items())

"""The notes of an answer: what it assumes, and what could not be answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.inputs.numerals import counted, duration, percent, plural
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.inputs.support import Support
from scalelab.kinds.strategies import strategy_of
from scalelab.laws.rows import (
    CONFIGURATION,
    FitRows,
    cells,
    curve_columns,
    numbers,
)
from scalelab.laws.support import Gap
from scalelab.plan.first_check import NOT_WITNESSED
from scalelab.recommend.answer.recommendation import OutlookRow
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.contradictions import is_among
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.prediction.own_rates import disagreeing_rates
from scalelab.recommend.question.batches import ONE_EPOCH, BatchRule
from scalelab.recommend.question.candidates import (
    allocation_label,
    undivided,
    why_unshared,
)

_MOST_NAMED = 3  # of each kind of doubt


def assumptions(knowledge: Knowledge, chosen: OutlookRow) -> tuple[str, ...]:
    """Return what the answer assumes or leaves open, one sentence for each."""
    need, notes = knowledge.need, []
    amount = need.job and need.job.model_copy(update={"target": None})
    if knowledge.fitted.note:
        notes.append(knowledge.fitted.note)
    if knowledge.factorisation is not None:
        notes.append(knowledge.factorisation.describe())
    if knowledge.whole_runs is not None:
        notes.append(
            "This way of training does not factorise into samples and steps: times "
            "follow whole runs."
        )
    if pruned := knowledge.subject.num_pruned:
        notes.append(
            f"Ended early by their source (pruned): {counted(pruned, 'attempt')}; what "
            "they measured until then counts."
        )
    notes += contradicting(knowledge)
    notes += doubts(knowledge)
    notes += of_unknown_scatter(knowledge.rows)
    notes += not_witnessed(knowledge.rows, knowledge.subject.device_word)
    notes += disagreeing_rates(knowledge.rows, knowledge.subject.device_word)
    batch = chosen.batch.global_batch_size
    if need.num_missed:
        runs = (
            "the one run" if need.num_missed == 1 else counted(need.num_missed, "run")
        )
        notes.append(
            f"Not reached: {need.target}, by {runs}; the answer is for {amount}, which "
            "may not suffice."
        )
    elif need.target is not None and not need.uses_law:
        notes.append(
            f"Not measured: samples to {need.target}; assumes {amount} suffice."
        )
    elif need.job and not need.uses_law and batch not in need.measured_batches():
        notes.append(
            f"Not measured: accuracy at batch {batch}; assumes {amount} suffice."
        )
    notes.append(times_contain(knowledge.rows))
    known = _known_by_convergence(knowledge, chosen) | LAYOUT_PLACEHOLDERS.keys()
    notes += [
        f"Accuracy is assumed not to depend on {name} (chosen: {value})."
        for name, value in chosen.settings.items()
        if name not in known
    ]
    if chosen.batch.gradient_accumulation_steps > 1 and not knowledge.saw_accumulation:
        notes.append(
            "Accumulation was not measured: of the passes of a step, only the last is "
            "taken to exchange gradients."
        )
    if chosen.basis in (Support.EXTRAPOLATED, Support.NOT_MEASURED):
        devices = counted(chosen.world_size, knowledge.subject.device_word)
        notes.append(
            f"Extrapolated: nothing was measured on {devices} with local batch "
            f"{chosen.batch.local_batch_size:,}. Try that briefly before the job."
        )
    return tuple(notes)


def _known_by_convergence(knowledge: Knowledge, chosen: OutlookRow) -> set[str]:
    """Return the settings that the samples to the target were measured with."""
    settings = {**knowledge.held, **chosen.settings}
    strategy = strategy_of(settings.get("parallelism"))
    if not knowledge.need.uses_law:
        return set()
    if strategy.is_synchronous:
        return {PROGRAM, *strategy.altering_options(settings)}
    return {PROGRAM, "parallelism", *strategy.options}


def times_contain(rows: FitRows) -> str:
    """Say what the step times of an answer contain."""
    used = rows.observations[rows.reasons == ""]
    if not set(map(str, cells(used, "kind"))) <= {*TrialKind}:
        return (
            "Times are made of the given step times, whatever those contain; start-up "
            "comes on top."
        )
    if np.isfinite(numbers(used, "compute_s")).all():
        return (
            "Times are of training steps alone; start-up, evaluation and checkpoints "
            "come on top."
        )
    evaluation_s = numbers(used, "evaluation_s")
    if np.isfinite(evaluation_s).all():
        if not evaluation_s.any():
            return (
                "Times contain all between two reported steps, evaluation too if there "
                "was any: metrics.evaluation matched no line. Start-up comes on top."
            )
        return (
            "Times are of training steps and checkpoints between them; start-up and "
            "evaluation come on top."
        )
    return (
        "Times contain all between two reported steps, evaluation too unless "
        "metrics.evaluation sets it apart; start-up comes on top."
    )


def contradicting(knowledge: Knowledge) -> Iterator[str]:
    """Name the configurations whose runs contradict one another."""
    found = knowledge.contradicted
    for row in found.iloc[:_MOST_NAMED].to_dict("records"):
        yield (
            f"Contradicting: {counted(int(row['num_runs']), 'run')} on "
            f"{_configuration(row, knowledge)}, took {duration(row['least_s'])} to "
            f"{duration(row['most_s'])} a step. Find out why, and measure it again."
        )
    if len(found) > _MOST_NAMED:
        more = counted(len(found) - _MOST_NAMED, "further configuration")
        yield f"Contradicting likewise: {more}."


def _configuration(row: Mapping[Any, Any], knowledge: Knowledge) -> str:
    size, nodes = int(row["world_size"]), int(row["num_nodes"])
    steps = int(row["gradient_accumulation_steps"])
    return (
        f"{counted(size, knowledge.subject.device_word)} "
        f"({allocation_label(size, nodes)}), local batch {int(row['local_batch_size'])}"
        f"{f' x {steps} accumulation steps' if steps > 1 else ''}"
    )


def doubts(knowledge: Knowledge) -> Iterator[str]:
    """Name the rows that hardly count, because the other rows contradict them.

    Not those of a configuration whose runs contradict one another: that is said of it.
    """
    doubted = knowledge.law.doubted
    rows = knowledge.rows.frame.loc[doubted.index]
    is_said = is_among(rows, knowledge.contradicted)
    doubted = doubted[~is_said]
    order = doubted["factor"].map(lambda factor: -max(factor, 1 / factor)).argsort()
    for row in doubted.iloc[order[:_MOST_NAMED]].to_dict("records"):
        slower = row["factor"] > 1
        times = row["factor"] if slower else 1 / row["factor"]
        yield (
            f"Doubted: a run on {_configuration(row, knowledge)}, was {times:.2g} "
            f"times {'slower' if slower else 'faster'} than the other rows say; it "
            "hardly moves the expected time. Measure it again."
        )
    if len(doubted) > _MOST_NAMED:
        more = counted(len(doubted) - _MOST_NAMED, "further run")
        yield f"Doubted likewise: {more}."


def of_unknown_scatter(rows: FitRows) -> Iterator[str]:
    """Say which runs have too few step times to scatter, and no repeat that tells it.

    A trial's row has an interval of its step time from four of them on. A program that
    reports once per epoch has one for each epoch. What a row of an imported table is
    made of is not known.
    """
    frame = rows.frame
    measured = rows.observations.loc[frame.index]
    is_short = np.isfinite(numbers(measured, "num_steps"))
    is_short &= ~np.isfinite(numbers(measured, "step_time_lo_s"))
    is_trial = np.array([kind in {*TrialKind} for kind in cells(measured, "kind")])
    what = [*curve_columns(frame), *CONFIGURATION]
    is_alone = ~frame.duplicated(what, keep=False)
    if not is_trial.any() and is_alone.all():
        yield (
            "Scatter unknown: nothing was measured twice; further runs are taken to "
            "differ by the usual few percent. Repeat some."
        )
    if number := int((is_short & is_trial & is_alone).sum()):
        yield (
            f"Scatter unknown: {counted(number, 'run')} without repeats, and with one "
            "to three readings of the step time in each; the usual scatter is assumed. "
            "Report steps more often, train longer, or raise measure.repeats."
        )


def not_witnessed(rows: FitRows, device_word: str) -> Iterator[str]:
    """Say which rows rest on ranks of which nothing showed that they met."""
    used = rows.observations[rows.reasons == ""]
    found = [str(each) == NOT_WITNESSED for each in cells(used, "ranks_witness")]
    sizes = numbers(used, "world_size")[np.array(found, dtype=bool)].astype(int)
    if not len(sizes):
        return
    span = "" if sizes.min() == sizes.max() else f"{sizes.min():,} to "
    yield (
        f"Not witnessed: nothing showed that the ranks of {span}"
        f"{counted(int(sizes.max()), device_word)} work together. If each trains "
        "alone, their speedup is no scaling. Report world_size, as the framework says "
        "it."
    )


def compared(programs: Mapping[str, Outlook], device_word: str) -> Iterator[str]:
    """Say how long the job would take with each of several programs."""
    if len(programs) < 2:
        return
    times = {name: float(best.time_s[0]) for name, best in programs.items()}
    size = int(next(iter(programs.values())).sizes[0])
    said = [
        f"{name} {duration(times[name])}"
        for name in sorted(times, key=lambda each: times[each])
    ]
    yield (
        f"Programs on {counted(size, device_word)}, each with its best batch: "
        f"{', '.join(said)}."
    )


def not_chosen(
    knowledge: Knowledge, rows: Sequence[OutlookRow], *, is_proposed: bool
) -> Iterator[str]:
    """Say why some of the rows that are shown may not be chosen."""
    shown = [row for row in rows if not row.is_eligible]
    rule = knowledge.rule
    largest = rule.largest
    beyond = [row for row in shown if row.batch.global_batch_size > largest]
    if beyond:
        devices = counted(beyond[0].world_size, knowledge.subject.device_word)
        more = "" if rule.why_largest == ONE_EPOCH else "; --max-batch allows more"
        yield (
            f"Not chosen: {devices} or more. Their global batch is beyond {largest:,}, "
            f"{rule.why_largest}{more}."
        )
    if [row for row in shown if row.basis == Support.NOT_MEASURED]:
        trial = " The proposed trial would tell." if is_proposed else ""
        yield (
            f"Not chosen: rows that say {Support.NOT_MEASURED!s}. They rest on a "
            f"belief about other machines; --accept-unmeasured allows them.{trial}"
        )


def cut_to_an_epoch(rule: BatchRule) -> Iterator[str]:
    """Say that larger batches than the data of an epoch are left out."""
    if rule.why_largest == ONE_EPOCH:
        yield (
            f"Only global batches up to {rule.largest:,} are considered: that is one "
            "epoch."
        )


def considered(
    knowledge: Knowledge, rows: Sequence[OutlookRow], *, are_stated: bool
) -> str:
    """Say among which devices and batches nothing meets the limits."""
    rule, sizes = knowledge.rule, [row.world_size for row in rows]
    devices = f"{min(sizes)} to {counted(max(sizes), knowledge.subject.device_word)}"
    more = [] if are_stated else ["--gpus allows more of them"]
    if rule.why_largest and rule.why_largest != ONE_EPOCH:
        more.append("--max-batch larger batches")
    return (
        f"Considered: {devices}, {rule.in_words()}"
        f"{'; ' if more else ''}{', '.join(more)}."
    )


def not_considered(
    knowledge: Knowledge, wanted: Sequence[int], answered: Set[int]
) -> Iterator[str]:
    """Say which of the wanted and measured world sizes have no row, and why."""
    measured = knowledge.rows.frame["world_size"].astype(int)
    asked = sorted({*wanted, *(measured if knowledge.rule.is_named else ())})
    missing = [size for size in asked if size not in answered]
    curves = knowledge.rows.curves.values()
    yield from dict.fromkeys(why_unshared(curves, missing))
    uneven = undivided(curves, missing)
    missing = [size for size in missing if size not in uneven]
    if not missing:
        return
    word, rule = plural(knowledge.subject.device_word, 2), knowledge.rule
    devices = f"{', '.join(f'{size:,}' for size in missing)} {word}"
    yield (
        f"Not considered: {devices}; {rule.in_words()} cannot be shared evenly in "
        "local batches that are known to fit."
    )


def passed_over(
    measured: Outlook, limits: Sequence[str], device_word: str
) -> Iterator[str]:
    """Say that a measured configuration holds the limits, but not surely enough."""
    times = zip(measured.time_s, measured.probability, strict=True)
    rows = zip(measured.frame.to_dict("records"), times, strict=True)
    for row, (time_s, probability) in rows:
        devices = counted(row["world_size"], device_word)
        place = allocation_label(int(row["world_size"]), int(row["num_nodes"]))
        yield (
            f"Measured, but not sure enough: {devices} ({place}), global batch "
            f"{row['global_batch_size']:,} with local batch "
            f"{row['local_batch_size']:,}: {duration(time_s)}, chance of meeting "
            f"{' and '.join(limits)}: {percent(probability)}."
        )


def condition(knowledge: Knowledge, chosen: OutlookRow) -> str:
    """Return what the chances of an answer take for granted, in words."""
    need, job = knowledge.need, knowledge.need.job
    if need.uses_law or job is None or job.steps:
        return ""
    amount = job.model_copy(update={"target": None})
    return f"{amount} suffice at batch {chosen.batch.global_batch_size:,}"


def not_identifiable(gap: Gap, is_emulated: bool) -> str:
    """Say which parameters of a law cannot be identified, why, and what helps."""
    elsewhere = ""
    is_of_machine = any(name.startswith("inter_node") for name in gap.parameters)
    if is_of_machine and not is_emulated:  # an emulated run declares its own machine
        elsewhere = " Or learn from another run on these devices: --learn-from RUN."
    return (
        f"Not identifiable: {' and '.join(gap.parameters)}, because {gap.why}. "
        f"{gap.remedy}{elsewhere}"
    )

"""The notes of an answer: what it assumes, and what could not be answered."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.experiment.job import Job
from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.inputs.links import Link
from scalelab.inputs.outcome import Support
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.kinds.resources import TIME, Units
from scalelab.kinds.strategies import strategy_of
from scalelab.laws.convergence.rows import RATE_SETTINGS
from scalelab.laws.rows import CONFIGURATION, FitRows, cells, curve_name, numbers
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Gap
from scalelab.plan.first_check import INSIDE, LOG, ONE_PROCESS
from scalelab.recommend.answer.facts import Contents, Fact
from scalelab.recommend.answer.rows import Barred, OutlookRow
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.consistency import (
    busy_machine,
    disagreeing_rates,
    ended_early,
    equal_losses,
    is_among,
    later_steps,
    long_trials,
    moved_later,
    not_settled,
    not_witnessed,
    other_samples,
    unknown_scatter,
)
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.batches import ONE_EPOCH, BatchRule
from scalelab.recommend.question.candidates import (
    allocation_label,
    undivided,
    why_unshared,
)
from scalelab.records.columns import LONG_TRIAL, OPTION_PREFIX, PROGRAM_COLUMN

# A row that is named, why, and the row that it is compared with
Named = tuple[str, Outlook, Outlook]
_MOST_NAMED = 3  # of each kind of doubt
_WRITTEN = 0.005  # smaller shares are written as 0%
_DOUBTS_OF_FIGURES = (
    unknown_scatter,
    not_witnessed,
    disagreeing_rates,
    equal_losses,
    ended_early,
)
_BESIDE_STEPS: Mapping[Contents, Sequence[str]] = {
    "steps": ["start-up", "evaluation", "checkpoints"],
    "steps_and_checkpoints": ["start-up", "evaluation"],
    "whole_runs": [],
}


def assumptions(
    knowledge: Knowledge,
    chosen: OutlookRow,
    config: Mapping[Any, Any],
    accuracy: Sequence[Fact],
) -> Iterator[Fact]:
    """Note what the answer assumes or leaves open, of the chosen configuration."""
    if knowledge.learned:
        yield knowledge.learned
    if knowledge.factorisation is not None:
        yield Fact("off_the_product", knowledge.factorisation.figures())

    contents = contents_of_times(knowledge.rows)
    if knowledge.whole_runs is not None and contents == "given":
        contents = "whole_runs"
    elif knowledge.whole_runs is not None:
        yield Fact("whole_runs")

    outcomes = map(str, cells(knowledge.rows.observations, "outcome"))
    if pruned := list(outcomes).count("pruned"):
        yield Fact.of("pruned", num_attempts=pruned)

    yield from contradicting(knowledge.contradicted)
    yield from _doubts(knowledge)
    yield from [*knowledge.uneven.values()][:_MOST_NAMED]

    yield from busy_machine(knowledge.rows)
    yield from long_trials(knowledge.rows)
    yield from _of_each_program(knowledge, chosen)

    batch, job = chosen.batch.global_batch_size, knowledge.need.job
    yield from _not_measured(knowledge, batch)
    beside_s = knowledge.overhead.by_part(chosen.samples.value, config)
    parts = _BESIDE_STEPS.get(contents, ["start-up"])
    not_in = [part for part in parts if part not in beside_s]
    yield Fact.of(
        "times_contain",
        contents=contents,
        beside_s=beside_s,
        not_in=not_in,
        of_first_epoch=are_of_first_epoch(knowledge.rows, job, batch),
    )

    known = _known_by_convergence(knowledge, chosen, config["samples_curve"])

    known |= LAYOUT_PLACEHOLDERS.keys()
    if any(fact.kind == "accuracy_gap" for fact in accuracy):
        settings = {**knowledge.held, **chosen.settings}
        known |= {"parallelism", *strategy_of(settings.get("parallelism")).options}
    if pooled := knowledge.need.pooled:
        yield Fact.of("pooled", settings=pooled)

    for name, value in chosen.settings.items():
        if name not in known:
            yield Fact.of("accuracy_alike", setting=name, value=value)

    if knowledge.law.is_flat:
        rows = knowledge.rows.frame
        yield Fact.of(
            "flat",
            law=knowledge.law.name,
            world_size=int(rows["world_size"].max()),
            least=int(rows["local_batch_size"].min()),
            most=int(rows["local_batch_size"].max()),
        )

    if chosen.basis in (Support.EXTRAPOLATED, Support.NOT_MEASURED):
        size, local = chosen.world_size, chosen.batch.local_batch_size
        yield Fact.of(
            "extrapolated",
            world_size=size,
            local_batch_size=local,
            gradient_accumulation_steps=chosen.batch.gradient_accumulation_steps,
        )


def believed(
    rows: Sequence[OutlookRow], law: str, link: Link | None, *, is_accepted: bool
) -> Iterator[Fact]:
    """Note what the question has the answer believe, where it rests on that."""
    beliefs = [] if law == StepTimeLaw.name else [f"the law {law} of step times"]
    if any(row.basis == Support.NOT_MEASURED for row in rows):
        whose = f", as {link.said_by} has it" if link and link.said_by else ""
        beliefs += [f"{link} between nodes{whose}"] if link else []
        beliefs += [f"rows that say {Support.NOT_MEASURED}"] if is_accepted else []
    if beliefs:
        yield Fact.of("believed", beliefs=beliefs)


def link_unknown(rows: Sequence[OutlookRow], link: Link | None) -> Iterator[Fact]:
    """Note how unsure rows are that rest on a link between nodes nobody named."""
    guessed = [row for row in rows if row.basis == Support.NOT_MEASURED]
    across = [row for row in guessed if row.num_nodes > 1]
    if across and link is None:
        size, time = across[0].world_size, across[0].time_s
        yield Fact.of("link_unknown", world_size=size, lo_s=time.lo, hi_s=time.hi)


def _not_measured(knowledge: Knowledge, batch: int) -> Iterator[Fact]:
    need, job = knowledge.need, knowledge.need.job
    target = {} if need.target is None else {"target": str(need.target)}
    if need.tried and not need.uses_law:
        runs = need.runs
        yield Fact.of(
            "target_not_reached",
            **target,
            num_runs=len(runs),
            within_samples=int(runs["samples"].max()),
            amount=_length(job),
        )
    elif need.target is not None and not need.uses_law:
        yield Fact.of("target_not_measured", **target, amount=_length(job))
    elif job and not need.uses_law and batch not in need.measured_batches():
        yield Fact.of(
            "accuracy_not_measured",
            **target,
            global_batch_size=batch,
            amount=_length(job),
        )


def _of_each_program(knowledge: Knowledge, chosen: OutlookRow) -> Iterator[Fact]:
    """Note doubts about the figures of each program, the chosen program first."""
    rows, moved = knowledge.rows, moved_later(knowledge.rows)
    programs = (
        rows.observations.reindex(columns=[PROGRAM_COLUMN])[PROGRAM_COLUMN]
        .astype(object)
        .fillna("")
        .map(str)
    )
    chosen_program = str({**knowledge.held, **chosen.settings}.get(PROGRAM, ""))

    for program in sorted({*programs}, key=lambda name: (name != chosen_program, name)):
        part = rows.take(rows.observations.index[programs == program])
        named = {} if program in (chosen_program, "") else {PROGRAM: program}
        found = [
            *later_steps(moved.loc[moved.index.isin(part.observations.index)]),
            *(fact for noted in _DOUBTS_OF_FIGURES for fact in noted(part)),
            *not_settled(part, chosen.world_size),
            *other_samples(part, knowledge.need.job, chosen.batch.global_batch_size),
        ]
        for fact in found:
            yield Fact.of(fact.kind, **fact.values, **named)


def batches_differ(knowledge: Knowledge, rows: Sequence[OutlookRow]) -> Iterator[Fact]:
    """Note that rows differ in batch, and which length of the job all of them have."""
    job, allowed = knowledge.need.job, (r for r in rows if r.barred_by != "batch")
    batches = [row.batch.global_batch_size for row in allowed]
    if job and not knowledge.need.uses_law and len({*batches}) > 1:
        yield Fact.of(
            "batches_differ",
            least=min(batches),
            most=max(batches),
            amount=_length(job),
        )


def _length(job: Job | None) -> str:
    return str(job and job.model_copy(update={"target": None}))


def _known_by_convergence(
    knowledge: Knowledge, chosen: OutlookRow, curve: int
) -> set[str]:
    """Return the settings whose part in the samples needed was measured."""
    need = knowledge.need
    if not need.uses_law or need.law is None:
        return set()

    settings = {**knowledge.held, **chosen.settings}
    known_settings = {
        name.removeprefix(OPTION_PREFIX): value for name, value in need.keys[curve]
    }
    known = {
        name for name, value in known_settings.items() if settings.get(name) == value
    }
    known |= {*need.pooled}

    strategy = strategy_of(settings.get("parallelism"))
    if strategy.is_synchronous:
        return {*RATE_SETTINGS, *known, *strategy.altering_options(settings)}

    return {*RATE_SETTINGS, *known, "parallelism", *strategy.options}


def contents_of_times(rows: FitRows) -> Contents:
    """Return what the step times of an answer contain."""
    used = rows.used
    if not set(map(str, cells(used, "kind"))) <= {*TrialKind}:
        return "given"
    if np.isfinite(numbers(used, "compute_s")).all():
        return "steps"
    evaluation_s = numbers(used, "evaluation_s")
    is_apart = np.isfinite(evaluation_s).all() and evaluation_s.any()
    return "steps_and_checkpoints" if is_apart else "all"


def are_of_first_epoch(rows: FitRows, job: Job | None, batch: int) -> bool:
    """Tell whether all trials of a program ended within the first of several epochs.

    Later ones may be faster, where the first reads, decodes or compiles for them.
    """
    epoch = job.samples_per_epoch if job else None
    if job is None or epoch is None or (job.num_samples(batch) or np.inf) <= epoch:
        return False
    is_timed = rows.reasons.isin([(), (LONG_TRIAL,)])
    timed = rows.observations[is_timed]
    is_program = {*map(str, cells(timed, "measured_by"))} <= {INSIDE, LOG}
    return is_program and bool((numbers(timed, "num_samples") <= epoch).all())


def contradicting(found: pd.DataFrame) -> Iterator[Fact]:
    """Note how many configurations have runs that contradict one another."""
    for row in found.iloc[:1].to_dict("records"):  # the worst
        yield Fact.of(
            "contradicting",
            **_configuration(row),
            settings={PROGRAM: row[PROGRAM_COLUMN]} if PROGRAM_COLUMN in row else {},
            num_configurations=len(found),
            factor=row["most_s"] / row["least_s"],
            num_runs=row["num_runs"],
            least_s=row["least_s"],
            most_s=row["most_s"],
        )


def _configuration(row: Mapping[Any, Any]) -> dict[str, Any]:
    size, nodes, local, passes = (int(row[name]) for name in CONFIGURATION[:4])
    return {
        "world_size": size,
        "allocation": allocation_label(size, nodes),
        "local_batch_size": local,
        "gradient_accumulation_steps": passes,
    }


def _doubts(knowledge: Knowledge) -> Iterator[Fact]:
    doubted = knowledge.doubted
    # of a configuration whose runs contradict one another that is said already
    rows = knowledge.rows.frame.loc[doubted.index]
    doubted = doubted[~is_among(rows, knowledge.contradicted)]
    order = doubted["factor"].map(lambda factor: -max(factor, 1 / factor)).argsort()
    yield from doubts(doubted.iloc[order[:_MOST_NAMED]], knowledge.rows)
    if len(doubted) > _MOST_NAMED:
        yield Fact.of("more_doubted", count=len(doubted) - _MOST_NAMED)


def doubts(doubted: pd.DataFrame, rows: FitRows) -> Iterator[Fact]:
    """Note each doubted row, how often it was measured, and the nearest sizes."""
    kept = rows.frame.drop(index=doubted.index)
    for key, curve in rows.curves.items():
        others = kept["world_size"][kept.index.isin(curve.index)]
        for row in doubted[doubted.index.isin(curve.index)].to_dict("records"):
            below, above = (
                others[others < row["world_size"]],
                others[others > row["world_size"]],
            )
            is_between = len(below) and len(above)
            yield Fact.of(
                "doubted",
                **_configuration(row),
                factor=row["factor"],
                num_runs=int(is_among(curve, pd.DataFrame([row])).sum()),
                neighbours=[int(below.max()), int(above.min())] if is_between else [],
                curve=curve_name(key, rows.curves),
            )


def runs_as_one_process(rows: FitRows) -> bool:
    """Tell whether all rows are of a process on a CPU that joins no others."""
    return {ONE_PROCESS} == {
        str(witness)
        for witness in cells(rows.observations.loc[rows.frame.index], "ranks_witness")
    }


def compared(programs: Mapping[str, Outlook]) -> Iterator[Fact]:
    """Note how long the job would take with each of several programs."""
    if len(programs) > 1:
        times = {name: float(best.time_s[0]) for name, best in programs.items()}
        size = int(next(iter(programs.values())).sizes[0])
        yield Fact.of("programs", world_size=size, times_s=times)


def not_chosen(
    rule: BatchRule,
    rows: Sequence[OutlookRow],
    *,
    is_proposed: bool,
    is_accepted: bool,
) -> Iterator[Fact]:
    """Note why some of the rows that are shown may not be chosen.

    ``is_accepted``: rows may be chosen that rest on what was not measured.
    """
    shown = [row for row in rows if not row.is_eligible]
    beyond = [row for row in shown if row.batch.global_batch_size > rule.largest]
    if beyond:
        yield Fact.of(
            "batch_too_large",
            world_size=beyond[0].world_size,
            largest=rule.largest,
            why=rule.why_largest,
            may_ask=rule.why_largest != ONE_EPOCH,
        )

    if sizes := _barred_by("contradicted", shown):
        yield Fact.of("contradicted_not_chosen", world_sizes=sizes)
    if sizes := _barred_by("doubted", shown):
        yield Fact.of("doubted_not_chosen", world_sizes=sizes)

    guessed = [row.world_size for row in shown if row.basis == Support.NOT_MEASURED]
    if guessed and not is_accepted:
        yield Fact.of(
            "unmeasured_not_chosen", world_sizes=guessed, is_proposed=is_proposed
        )


def _barred_by(reason: Barred, rows: Sequence[OutlookRow]) -> list[int]:
    return [row.world_size for row in rows if row.barred_by == reason]


def about_efficiency(rows: Sequence[OutlookRow], smallest: int) -> Iterator[Fact]:
    """Note what efficiencies compare, and why some exceed 1."""
    kinds = {row.scaling for row in rows if row.scaling}
    if kinds:
        scaling = kinds.pop() if len(kinds) == 1 else "other"
        others = (
            dict(row.compared_with)
            for row in rows
            if not row.compared_with.items() <= row.settings.items()
        )
        yield Fact.of(
            "efficiency",
            world_size=smallest,
            scaling=scaling,
            other_settings=next(others, {}),
        )

    above = [row for row in rows if row.scaling_efficiency.value >= 1 + _WRITTEN]
    if any(row.world_size < smallest for row in above):
        yield Fact.of("above_ideal_on_fewer", world_size=smallest)

    if more := [row for row in above if row.world_size > smallest]:
        sure = {row.scaling for row in more if row.scaling_efficiency.lo > 1}
        why = "the fewest devices were measured slow: measure them again"
        if sure - {"weak"}:
            why = f"a smaller batch per device may fit a cache, or {why}"
        why = why if sure else "by less than runs scatter"
        yield Fact.of("above_ideal_on_more", world_size=smallest, why=why)


def against_cheapest(rows: Sequence[OutlookRow]) -> Iterator[Fact]:
    """Note what the choice takes against the row with the fewest device-hours."""
    hours = {row.gpu_hours.value: row for row in rows if row.is_eligible}
    chosen = next(row.gpu_hours.value for row in rows if row.is_chosen)
    more, size = chosen / min(hours) - 1, hours[min(hours)].world_size
    if more >= _WRITTEN:
        yield Fact.of("against_cheapest", world_size=size, more=more)


def cut_to_an_epoch(rule: BatchRule) -> Iterator[Fact]:
    """Note that larger batches than the data of an epoch are left out."""
    if rule.why_largest == ONE_EPOCH:
        yield Fact.of("cut_to_an_epoch", largest=rule.largest)


def considered(
    rule: BatchRule, rows: Sequence[OutlookRow], wanted: Sequence[int]
) -> Fact:
    """Note among which devices and batches nothing meets the limits."""
    sizes = [row.world_size for row in rows]
    return Fact.of(
        "considered",
        least=min(sizes),
        most=max(sizes),
        batches=rule.in_words(),
        may_ask_devices=not wanted,
        may_ask_batches=rule.why_largest not in ("", ONE_EPOCH),
    )


def not_considered(
    knowledge: Knowledge, rows: Sequence[OutlookRow], wanted: Sequence[int]
) -> Iterator[Fact]:
    """Note which of the wanted and measured world sizes have no row, and why."""
    answered = {row.world_size for row in rows}
    measured = knowledge.rows.frame["world_size"].astype(int)
    asked = sorted({*wanted, *(measured if knowledge.rule.is_named else ())})
    missing = [size for size in asked if size not in answered]

    curves = knowledge.rows.curves.values()
    if knowledge.whole_runs is None:
        yield from why_unshared(curves, missing)

    uneven = undivided(curves, missing)
    if missing := [size for size in missing if size not in uneven]:
        batches = knowledge.rule.in_words()
        yield Fact.of("batch_not_shared", world_sizes=missing, batches=batches)


def named(
    found: Iterable[Named], limits: Sequence[str], knowledge: Knowledge, units: Units
) -> Iterator[Fact]:
    """Note the rows that are named beside the chosen one."""
    for kind, one, other in found:
        (row,) = one.frame.to_dict("records")
        spent, others = one.spent.medians(), other.spent.medians()
        amounts = {resource: float(spent.of(resource)[0]) for resource in spent.known}
        yield Fact.of(
            kind,
            **_configuration(row),
            global_batch_size=int(row["global_batch_size"]),
            settings=knowledge.settings(row),
            basis=str(row["support"]),
            takes=[
                resource.in_words(amount, units) for resource, amount in amounts.items()
            ],
            limits=[*limits],
            of_doublings=not limits,
            time_s=amounts[TIME],
            probability=float(one.probability[0]),
            than=int(other.sizes[0]),
            speedup=float(others.time_s[0]) / amounts[TIME],
            cost_ratio=amounts[spent.cost] / float(others.of(spent.cost)[0]),
        )


def condition(knowledge: Knowledge, chosen: OutlookRow) -> str:
    """Return what the chances of an answer take for granted, in words."""
    need, job = knowledge.need, knowledge.need.job
    if need.uses_law or job is None or job.steps:
        return ""
    return f"{_length(job)} suffice at batch {chosen.batch.global_batch_size:,}"


def not_identifiable(gaps: Iterable[Gap], is_emulated: bool) -> Iterator[Fact]:
    """Note which parameters of a law cannot be identified, why, and what helps."""
    known = dict.fromkeys((gap.parameters, gap.why, gap.remedy) for gap in gaps)
    for parameters, why, remedy in known:
        is_of_machine = any(name.startswith("inter_node") for name in parameters)
        yield Fact.of(
            "not_identifiable",
            parameters=[*parameters],
            why=why,
            remedy=remedy,
            # an emulated run declares its own machine
            may_learn=is_of_machine and not is_emulated,
        )

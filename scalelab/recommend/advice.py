"""The recommendation of an allocation, from observations and a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from scalelab.errors import NotIdentifiableError, SpecError, UnmeasuredError
from scalelab.experiment.job import Job
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.numerals import counted
from scalelab.inputs.support import Support
from scalelab.inputs.wording import Option
from scalelab.laws.convergence.time_to_target import measured_factorisation
from scalelab.laws.convergence.whole_runs import measured_whole_runs
from scalelab.laws.published import law_named
from scalelab.laws.rows import CONFIGURATION, Observed, numbers, prepared
from scalelab.laws.support import Gap
from scalelab.recommend.answer.failures import failures, limits_of_memory, why_no_answer
from scalelab.recommend.answer.recommendation import ParameterRow, Recommendation
from scalelab.recommend.evidence import Accuracy, evidence
from scalelab.recommend.knowledge import (
    AskedCurves,
    History,
    Knowledge,
    choose_subject,
    fit_step_times,
)
from scalelab.recommend.notes import (
    about_efficiency,
    against_cheapest,
    assumptions,
    compared,
    condition,
    considered,
    cut_to_an_epoch,
    not_chosen,
    not_considered,
    not_identifiable,
    passed_over,
)
from scalelab.recommend.prediction.consistency import is_among
from scalelab.recommend.prediction.efficiency import Baseline
from scalelab.recommend.prediction.knee import find_knee, last_paying
from scalelab.recommend.prediction.needs import SampleNeed, learning_rate
from scalelab.recommend.prediction.next_trial import next_trial
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
    look_ahead,
    outlook_rows,
)
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import (
    MemoryRoom,
    UntoldByProgram,
    candidates,
    is_printed,
    places,
)
from scalelab.recommend.question.objective import Choice, Constraints, choose
from scalelab.records.columns import PROGRAM_COLUMN

_CLEARLY = 0.05  # less of both: a smaller difference may be noise


def recommend(
    observations: Observed,
    job: Job | None,
    *,
    constraints: Constraints | None = None,
    batches: AskedBatch | None = None,
    allocations: Sequence[Allocation] | None = None,
    select: Mapping[str, Scalar] | None = None,
    law: str = "scalelab",
    within: Allocation | None = None,
    devices_on_node: int | None = None,
    history: History | None = None,
    link: Link | None = None,
    accept_unmeasured: bool = False,
    untold: UntoldByProgram = MappingProxyType({}),
) -> Recommendation:
    """Recommend an allocation for a job."""
    limits = constraints or Constraints()
    every = prepared(observations)
    subject = choose_subject(every.observations, select or {})
    _check_sequence_length(subject, job)
    rows = every.take(subject.frame.index)
    if rows.frame.empty:
        raise UnmeasuredError(why_no_answer(rows))
    rest = every.take(every.observations.index.drop(subject.frame.index))
    named = law_named(law)
    fitted, learned = fit_step_times(named, rows, rest, history=history, link=link)
    need = SampleNeed.of(subject.every_group, job, limits.target)
    whole = every.take(subject.every_group.index)
    factorisation = measured_factorisation(whole, named)
    knowledge = Knowledge(
        subject=subject,
        law=fitted,
        learned=learned,
        need=need,
        factorisation=factorisation if need.uses_law else None,
        whole_runs=measured_whole_runs(whole.observations, need.target)
        if need.target is not None and need.uses_law
        else None,
        rows=rows,
        rule=BatchRule.of(
            rows.frame,
            batches or AskedBatch(),
            job,
            converged=need.measured_batches() if need.uses_law else (),
            normalizes_locally=need.normalization == "local_batch_size",
        ),
        memory=MemoryRoom.of(subject.frame),
        accuracy=Accuracy.of(subject.every_group, rows.curves, limits),
    )
    where = places(rows.frame, allocations, devices_on_node)
    asked = _fitting(candidates(rows.curves, where, knowledge.rule, untold), knowledge)
    comparison = Comparison.of(
        asked, knowledge, limits, allocations, accepts_unmeasured=accept_unmeasured
    )
    wanted = sorted({place.world_size for place in allocations or ()})
    if within is not None:
        has_devices = asked["world_size"] <= within.world_size
        asked = asked[has_devices & (asked["num_nodes"] <= within.num_nodes)]
    answer = _answer(
        knowledge, comparison, fitted.gaps_at(asked), limits, within, wanted
    )
    return replace(answer, evidence=evidence(whole, subject.frame, factorisation))


def _check_sequence_length(subject: AskedCurves, job: Job | None) -> None:
    asked = job and job.sequence_length
    measured = numbers(subject.frame, "sequence_length")
    other = measured[np.isfinite(measured) & (measured != asked)]
    if asked and len(other):
        raise SpecError(
            f"job.sequence_length={asked}, but trials measured samples "
            f"of {other[0]:g} tokens. Correct the job, or leave sequence_length out "
            "and say the length in samples."
        )


def _answer(
    knowledge: Knowledge,
    comparison: Comparison,
    gaps: tuple[Gap, ...],
    limits: Constraints,
    within: Allocation | None,
    wanted: Sequence[int],
) -> Recommendation:
    subject, law, need = knowledge.subject, knowledge.law, knowledge.need
    rule, outlook, choice = knowledge.rule, comparison.printed, comparison.choice
    base = Baseline.of(knowledge.rows, law)
    table = outlook_rows(outlook, choice.index, base, limits, knowledge)
    chosen = table[choice.index]
    limit_words = limits.in_words(subject.device_hour_word)
    if need.uses_law:
        limit_words = (*limit_words, str(need.target))
    proposed = next_trial(table, choice.index, outlook, knowledge, limits, gaps, within)
    guessed = {row.world_size for row in table if row.basis == Support.NOT_MEASURED}
    is_proposed = proposed is not None and proposed.world_size in guessed
    spent_s = numbers(subject.every_group, "allocated_gpu_s")
    known_s = spent_s[np.isfinite(spent_s)]
    config = outlook.frame.iloc[choice.index].to_dict()
    accuracy = [*knowledge.accuracy.notes(config)]
    parameters = _parameters("step time", law.parameters(limits.interval))
    if need.law is not None:
        parameters += _parameters("convergence", need.law.parameters(limits.interval))
    return Recommendation(
        workload=subject.workload,
        device_name=subject.device_name,
        node_group=subject.node_group,
        device_word=subject.device_word,
        device_hour_word=subject.device_hour_word,
        rows=table,
        meets_constraints=choice.meets and bool(config["is_accurate"]),
        limits=limit_words,
        conditions=limits.conditions,
        condition=condition(knowledge, chosen),
        objective=choice.rule,
        interval=limits.interval,
        confidence=limits.confidence,
        held=knowledge.held,
        baseline=counted(base.world_size, subject.device_word),
        learning_rate=learning_rate(
            subject.frame,
            int(chosen.batch.global_batch_size),
            str(outlook.frame["samples_rule"].iloc[choice.index]),
        ),
        knee=None
        if not knowledge.compares_counts
        else find_knee(
            outlook.expected_s,
            outlook.questions,
            outlook.frame["support"].to_numpy(),
            np.median(outlook.samples, axis=0),
            np.median(outlook.overhead_s, axis=0),
            law,
            limits.min_marginal_return,
            knowledge.rows,
        ),
        next_trial=proposed,
        price=limits.charges_in_words(subject.device_hour_word),
        facts=(
            *failures(subject.frame),
            *(against_cheapest(table) if knowledge.compares_counts else ()),
            *compared(comparison.programs),
            *passed_over(comparison.passed_over, limit_words),
            *accuracy,
            *assumptions(knowledge, chosen, accuracy),
            *knowledge.memory.notes(outlook.questions.iloc[[choice.index]]),
            *cut_to_an_epoch(rule),
            *about_efficiency(table, base.world_size),
            *not_chosen(rule, table, is_proposed=is_proposed),
            *(() if choice.meets else (considered(rule, table, wanted),)),
            *not_considered(knowledge, table, wanted),
            *not_identifiable(gaps, subject.is_emulated),
        ),
        left_out=law.left_out,
        left_out_of_convergence=need.law.left_out if need.law else {},
        num_observations=len(subject.frame),
        sweep_gpu_hours=float(known_s.sum()) / 3600 if len(known_s) else None,
        is_emulated=subject.is_emulated,
        law=law.name,
        formula=law.reference,
        parameters=parameters,
        memory_limits=limits_of_memory(subject.frame),
    )


def _parameters(law: str, table: pd.DataFrame) -> tuple[ParameterRow, ...]:
    named = table.rename(columns={"identified": "is_identified"})
    return tuple(
        ParameterRow(law=law, **{str(name): row[name] for name in row})
        for row in named.to_dict("records")
    )


def _fitting(asked: pd.DataFrame, knowledge: Knowledge) -> pd.DataFrame:
    names = list(CONFIGURATION)
    is_measured = is_among(asked[names], knowledge.rows.frame[names].astype(int))
    is_usable = is_measured | knowledge.memory.fits(asked)
    chosen: pd.DataFrame = asked[is_usable].reset_index(drop=True)
    if len(chosen):
        return chosen
    rule = knowledge.rule
    if rule.local_batch_size is not None and len(asked):
        largest = knowledge.memory.largest(asked).max()
        raise SpecError(
            f"{Option('local_batch')}={rule.local_batch_size:,} is not known to fit "
            f"into the memory of a device: what ran leaves room for {largest:,} at "
            "most.",
            "Ask for a smaller local batch.",
        )
    raise SpecError(
        f"No measured or larger allocation can share {rule.in_words()} evenly in local "
        "batches that are known to fit and of which the measured program can be told.",
        "Ask for another batch or other device counts.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The candidates that an answer shows, and the one that it recommends."""

    printed: Outlook
    choice: Choice
    # The measured configuration, one row or none, that would have been better than the
    # recommended one but does not hold the limits surely enough
    passed_over: Outlook
    # The best configuration of each of several programs, one row, on as many devices
    programs: Mapping[str, Outlook]

    @classmethod
    def of(
        cls,
        asked: pd.DataFrame,
        knowledge: Knowledge,
        limits: Constraints,
        allocations: Sequence[Allocation] | None,
        *,
        accepts_unmeasured: bool,
    ) -> Comparison:
        """Predict the asked configurations and choose."""
        every = look_ahead(asked, knowledge, limits, accepts_unmeasured)
        best = every.take(best_of_each_size(every, limits))
        if not best.is_eligible.any():
            raise SpecError(
                f"Nothing may be chosen: no row with {knowledge.rule.in_words()} rests "
                "on what was measured here.",
                "Ask for another batch, or accept what was not measured: "
                f"{Option('accept_unmeasured', True)}.",
            )
        is_shown = is_printed(best.sizes, knowledge.rows.frame, allocations)
        is_shown |= not is_shown[best.is_eligible].any()
        word = knowledge.subject.device_word
        if not limits.limited:
            best, is_shown = best.take(np.flatnonzero(is_shown)), is_shown[is_shown]
        choice = _choose(best, limits, word)
        if not (limits.limited or knowledge.compares_counts):
            choice = replace(choice, rule=f"no other {word} count was measured")
        is_shown[choice.index] = True
        position = int(is_shown[: choice.index].sum())
        alike = asked[asked["world_size"] == best.sizes[choice.index]]
        return cls(
            printed=best.take(np.flatnonzero(is_shown)),
            choice=replace(choice, index=position),
            passed_over=_passed_over(every, best, choice.index, limits),
            programs=_best_of_programs(alike, knowledge, limits, accepts_unmeasured),
        )


def _best_of_programs(
    asked: pd.DataFrame,
    knowledge: Knowledge,
    limits: Constraints,
    accepts_unmeasured: bool,
) -> dict[str, Outlook]:
    """Return the best of configurations on as many devices, by program.

    A program that never came to the target is not among them.
    """
    best = {}
    if PROGRAM_COLUMN in asked.columns:
        for name, own in asked.groupby(PROGRAM_COLUMN):
            with suppress(NotIdentifiableError):
                own = own.reset_index(drop=True)
                every = look_ahead(own, knowledge, limits, accepts_unmeasured)
                best[str(name)] = every.take(best_of_each_size(every, limits))
    return best


def _choose(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    time, eligible = best.time_s, best.is_eligible
    last = int(last_paying(time[None], best.sizes, limits.min_marginal_return)[0])
    is_known = (best.frame["support"] != Support.EXTRAPOLATED).to_numpy() & eligible
    paying = is_known & (np.arange(len(time)) <= last)
    if not paying.any():
        first = (is_known if is_known.any() else eligible).argmax()
        paying = np.arange(len(time)) == first
    choice = choose(
        best.spent.medians(),
        best.probability,
        eligible,
        paying,
        best.is_measured,
        limits,
        device_word,
    )
    if limits.limited:
        return choice
    if choice.index < last:
        more = "more were not measured"
        rule = f"{choice.rule}; {more}" if choice.index else f"{more}, though they pay"
        choice = replace(choice, rule=rule)
    return _undominated(best, choice, is_known)


def _undominated(best: Outlook, choice: Choice, is_known: np.ndarray) -> Choice:
    """Return the fastest row that takes less of time and device-hours, if one does.

    Returns that diminish at one doubling may come back at the next.
    """
    time, hours = best.time_s, np.median(best.spent.gpu_hours, axis=0)
    of, share = choice.index, 1 - _CLEARLY
    is_less = (time < share * time[of]) & (hours < share * hours[of]) & is_known
    if not is_less.any():
        return choice
    rule = (
        "it takes less time, and fewer device-hours, than the count at which returns "
        "first diminish"
    )
    fastest = int(np.where(is_less, time, np.inf).argmin())
    return replace(choice, index=fastest, rule=rule)


def _passed_over(
    every: Outlook, best: Outlook, index: int, limits: Constraints
) -> Outlook:
    """Return the likeliest measured configuration that is better but less sure."""
    chosen = best.take(np.array([index]))
    none = every.take(np.array([], dtype=int))
    if not limits.limited:
        return none
    medians, own = every.spent.medians(), chosen.spent.medians()
    aim = limits.minimised(medians.known)
    is_better = medians.of(aim) < own.of(aim)
    if chosen.probability[0] < limits.confidence:
        is_better = np.full(len(is_better), True)
    is_unsure = every.probability < limits.confidence
    holds = limits.excess(medians) <= 1
    found = np.flatnonzero(every.is_measured & is_better & is_unsure & holds)
    if not len(found):
        return none
    likeliest = found[every.probability[found].argmax()]
    is_chosen = every.questions.iloc[likeliest].equals(chosen.questions.iloc[0])
    return none if is_chosen else every.take(np.array([likeliest]))

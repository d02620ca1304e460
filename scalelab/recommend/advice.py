"""The recommendation of an allocation, from observations and a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from scalelab.errors import SpecError, UnmeasuredError
from scalelab.experiment.job import Job
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.support import Support
from scalelab.inputs.wording import Option
from scalelab.laws.convergence.time_to_target import measured_factorisation
from scalelab.laws.convergence.whole_runs import measured_whole_runs
from scalelab.laws.published import law_named
from scalelab.laws.rows import CONFIGURATION, Observed, numbers, prepared
from scalelab.laws.support import Gap
from scalelab.recommend.answer.failures import (
    failures,
    limits_of_memory,
    why_no_answer,
)
from scalelab.recommend.answer.recommendation import (
    ParameterRow,
    Recommendation,
)
from scalelab.recommend.comparison import Comparison
from scalelab.recommend.evidence import evidence
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.notes import (
    about_efficiency,
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
from scalelab.recommend.prediction.efficiency import Efficiency
from scalelab.recommend.prediction.knee import find_knee
from scalelab.recommend.prediction.needs import SampleNeed, learning_rate
from scalelab.recommend.prediction.next_trial import next_trial
from scalelab.recommend.prediction.outlook import outlook_rows
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import UntoldByProgram, candidates, places
from scalelab.recommend.question.history import History, fit_step_times
from scalelab.recommend.question.memory_room import MemoryRoom
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.subject import AskedCurves, choose_subject


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
    index = every.observations.index
    rest = every.take(index[~index.isin(subject.frame.index)])
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
    if job is None or job.sequence_length is None:
        return
    measured = numbers(subject.frame, "sequence_length")
    other = measured[np.isfinite(measured) & (measured != job.sequence_length)]
    if len(other):
        raise SpecError(
            f"job.sequence_length={job.sequence_length}, but trials measured samples "
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
    efficiency = Efficiency.of(
        outlook.frame, outlook.questions, law, subject.device_word
    )
    table = outlook_rows(outlook, choice.index, efficiency, limits, knowledge)
    chosen = table[choice.index]
    limit_words = limits.in_words(subject.device_hour_word)
    if need.uses_law:
        limit_words = (*limit_words, str(need.target))
    proposed = next_trial(table, outlook, knowledge, limits, gaps, within)
    guessed = {row.world_size for row in table if row.basis == Support.NOT_MEASURED}
    is_proposed = proposed is not None and proposed.world_size in guessed
    spent_s = numbers(subject.every_group, "allocated_gpu_s")
    known_s = spent_s[np.isfinite(spent_s)]
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
        meets_constraints=choice.meets,
        limits=limit_words,
        condition=condition(knowledge, chosen),
        objective=choice.rule,
        interval=limits.interval,
        confidence=limits.confidence,
        held=knowledge.held,
        baseline=efficiency.name,
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
            np.median(outlook.samples, axis=0),
            law,
            limits.min_marginal_return,
            knowledge.rows,
        ),
        next_trial=proposed,
        price=limits.price.in_words(subject.device_hour_word) if limits.price else None,
        facts=(
            *failures(subject.frame),
            *compared(comparison.programs),
            *passed_over(comparison.passed_over, limit_words),
            *assumptions(knowledge, chosen),
            *knowledge.memory.notes(outlook.questions.iloc[[choice.index]]),
            *cut_to_an_epoch(rule),
            *about_efficiency(table, efficiency.name),
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

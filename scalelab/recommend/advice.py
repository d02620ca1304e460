"""The recommendation of an allocation, from observations and a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from scalelab.errors import SpecError, UnmeasuredError
from scalelab.experiment.job import Job
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.numerals import counted
from scalelab.inputs.placeholders import Untold
from scalelab.inputs.support import Support
from scalelab.kinds.resources import Units
from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    measured_factorisation,
)
from scalelab.laws.published import law_named
from scalelab.laws.rows import FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Gap
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.failures import failures, limits_of_memory, why_no_answer
from scalelab.recommend.answer.recommendation import ParameterRow, Recommendation
from scalelab.recommend.argument import grounds, why_not
from scalelab.recommend.comparison import Comparison
from scalelab.recommend.evidence import Accuracy, evidence
from scalelab.recommend.knowledge import (
    AskedCurves,
    History,
    Knowledge,
    choose_subject,
    compared_columns,
    fit_step_times,
    whole_run_law,
    with_settings,
    with_value,
)
from scalelab.recommend.money.prices import Price
from scalelab.recommend.money.spot import SpotMarket
from scalelab.recommend.notes import (
    about_efficiency,
    against_cheapest,
    assumptions,
    believed,
    compared,
    condition,
    considered,
    cut_to_an_epoch,
    link_unknown,
    named,
    not_chosen,
    not_considered,
    not_identifiable,
    runs_as_one_process,
)
from scalelab.recommend.prediction.efficiency import Baseline
from scalelab.recommend.prediction.interrupted import interrupted
from scalelab.recommend.prediction.knee import find_knee
from scalelab.recommend.prediction.nearest import nearest, nearest_of, worth_granting
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.recommend.prediction.next_trial import next_trial
from scalelab.recommend.prediction.outlook import (
    look_ahead,
    outlook_rows,
)
from scalelab.recommend.prediction.rates import (
    critical_batch,
    learning_rate,
    measured_rates,
    missed,
    rates_found,
)
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import (
    MemoryRoom,
    UntoldByProgram,
    candidates,
    places,
)
from scalelab.recommend.question.choice import Choice
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints
from scalelab.records.columns import OPTION_PREFIX


def recommend(observations: Observed, job: Job | None, **asked: Any) -> Recommendation:
    """Recommend an allocation for a job; see :func:`consider` for what may be asked."""
    return consider(observations, job, **asked).recommendation()


def consider(
    observations: Observed,
    job: Job | None,
    *,
    constraints: Constraints | None = None,
    batches: AskedBatch | None = None,
    gpus: Sequence[int] = (),
    select: Mapping[str, Scalar] | None = None,
    law: str = "scalelab",
    within: Allocation | None = None,
    devices_on_node: int | None = None,
    history: History | None = None,
    link: Link | None = None,
    accept_unmeasured: bool = False,
    untold: UntoldByProgram = MappingProxyType({}),
    device: DeviceKind | None = None,
) -> Considered:
    """Fit the laws of one kind of device, and compare its allocations for a job."""
    limits = constraints or Constraints()
    every = prepared(observations)
    compared_by = compared_columns(every.observations)
    compared_by |= {name.removeprefix(OPTION_PREFIX) for name in compared_by}
    among = {n: of for n, of in (select or {}).items() if n in compared_by}
    others = {n: of for n, of in (select or {}).items() if n not in among}
    subject = choose_subject(every.observations, others, device)
    _check_sequence_length(subject, job)
    rows = every.take(subject.frame.index)
    if rows.frame.empty:
        raise UnmeasuredError(why_no_answer(rows))
    rest = every.take(every.observations.index.drop(subject.frame.index))
    named = law_named(law)
    fitted, learned = fit_step_times(named, rows, rest, history=history, link=link)
    need = SampleNeed.of(subject.everywhere, job, limits.target, among)
    selected = with_settings(rows, among)
    whole = every.take(subject.everywhere.index)
    whole_runs = whole_run_law(rows.observations, among, need)
    factorisation = measured_factorisation(whole, named)
    knowledge = Knowledge(
        subject=subject,
        law=fitted,
        learned=learned,
        need=need,
        factorisation=factorisation if need.uses_law else None,
        whole_runs=whole_runs,
        rows=selected,
        curves=rows.curves,
        rule=BatchRule.of(
            rows.frame,
            batches or AskedBatch(),
            job,
            everywhere=whole.frame,
            converged=need.measured_batches() if need.uses_law else (),
            normalizes_locally=need.normalization == "local_batch_size",
        ),
        memory=MemoryRoom.of(subject.frame),
        accuracy=Accuracy.of(subject.everywhere, rows.curves, limits),
    )
    if not gpus and runs_as_one_process(rows):
        gpus = [1]
    where = places(rows.frame, gpus, devices_on_node)
    if whole_runs is not None:  # which tell nothing of accumulation
        untold = {**untold, None: {*untold.get(None, ()), Untold.ACCUMULATION}}
    asked = candidates(rows.curves, where, knowledge.rule, untold, bool(whole_runs))
    for name, value in among.items():
        asked = with_value(asked, name, value)
    asked = knowledge.memory.fitting(asked, rows.frame, knowledge.rule)
    every_row = look_ahead(asked, knowledge, limits, accept_unmeasured)
    comparison = Comparison.of(
        every_row, knowledge, limits, gpus, accepts_unmeasured=accept_unmeasured
    )
    wanted = sorted({*gpus})
    if within is not None:
        has_devices = asked["world_size"] <= within.world_size
        asked = asked[has_devices & (asked["num_nodes"] <= within.num_nodes)]
    return Considered(
        knowledge=knowledge,
        comparison=comparison,
        limits=limits,
        gaps=fitted.gaps_at(asked),
        whole=whole,
        factorisation=factorisation,
        within=within,
        wanted=wanted,
        link=link,
        accepts_unmeasured=accept_unmeasured,
        kind=device,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Considered:
    """What is known of one kind of device, and which of its allocations is chosen."""

    knowledge: Knowledge
    comparison: Comparison
    limits: Constraints
    gaps: tuple[Gap, ...]
    # the rows on all kinds of devices, and how well they met the product of both laws
    whole: FitRows
    factorisation: Factorisation | None
    within: Allocation | None
    wanted: Sequence[int]
    link: Link | None
    accepts_unmeasured: bool
    kind: DeviceKind | None

    def choosing(self, choice: Choice) -> Considered:
        """Return the same with another choice among the rows that are shown."""
        return replace(self, comparison=replace(self.comparison, choice=choice))

    def called(
        self, device: str, price: Price | None, *, is_interruptible: bool = False
    ) -> Considered:
        """Return the same under another name of its devices, at another price."""
        subject = replace(
            self.knowledge.subject, device=device, is_interruptible=is_interruptible
        )
        return replace(
            self,
            knowledge=replace(self.knowledge, subject=subject),
            limits=replace(self.limits, price=price),
        )

    def on_spot(self, device: str, market: SpotMarket) -> Considered | None:
        """Return the same on interruptible nodes; None where nothing would end."""
        found = self.called(device, market.price, is_interruptible=True)
        every = interrupted(self.comparison.every, found.limits, market.interruptions)
        if not every.is_eligible.any():
            return None
        comparison = Comparison.of(
            every,
            found.knowledge,
            found.limits,
            self.wanted,
            accepts_unmeasured=self.accepts_unmeasured,
        )
        return replace(found, comparison=comparison)

    def recommendation(self) -> Recommendation:
        """Return the answer about the chosen row."""
        knowledge, link = self.knowledge, self.link
        is_accepted = self.accepts_unmeasured
        subject, need, law = knowledge.subject, knowledge.need, knowledge.law.name
        answer = _answer(
            knowledge,
            self.comparison,
            self.gaps,
            self.limits,
            self.within,
            self.wanted,
            is_accepted=is_accepted,
        )
        beliefs = believed(answer.rows, law, link, is_accepted=is_accepted)
        rates = measured_rates(need, subject.everywhere)
        late = missed(
            need, rates, answer.rows, subject.everywhere, subject.device_hour_word
        )
        beside = evidence(self.whole, subject.frame, self.factorisation, rates)
        may_cross = self.within is None and law == StepTimeLaw.name
        unknown = link_unknown(answer.rows, link) if may_cross else ()
        facts = (*beliefs, *late, *answer.facts, *unknown)
        return replace(answer, facts=facts, evidence=beside)


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
    *,
    is_accepted: bool,
) -> Recommendation:
    subject, law, need = knowledge.subject, knowledge.law, knowledge.need
    measured = knowledge.rows.observations
    rule, outlook, choice = knowledge.rule, comparison.printed, comparison.choice
    base = Baseline.of(knowledge.rows, knowledge.step_times)
    table = outlook_rows(outlook, choice.index, base, limits, knowledge)
    chosen = table[choice.index]
    units = limits.units(subject.device_hour_word)
    limit_words = limits.in_words(units)
    if need.uses_law:
        limit_words = (*limit_words, str(need.target))
    proposed = next_trial(table, choice.index, outlook, knowledge, limits, gaps, within)
    guessed = {row.world_size for row in table if row.basis == Support.NOT_MEASURED}
    is_proposed = proposed is not None and proposed.world_size in guessed
    spent_s = numbers(subject.everywhere, "allocated_gpu_s")
    known_s = spent_s[np.isfinite(spent_s)]
    config = outlook.frame.iloc[choice.index].to_dict()
    accuracy = [*knowledge.accuracy.notes(config)]
    beside = comparison.named()
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
        limited={name: float(limit) for name, limit in limits.limits.items()},
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
            knowledge.need.rate_settings(
                int(outlook.frame["samples_curve"].iloc[choice.index])
            ),
        ),
        knee=find_knee(outlook, knowledge, limits.min_marginal_return),
        next_trial=proposed,
        price=limits.charges_in_words(subject.device_hour_word) or None,
        currency=units.currency,
        facts=(
            *why_not(comparison, table, rule, beside, units),
            *grounds(knowledge, comparison, config),
            *failures(measured),
            *(against_cheapest(table) if knowledge.compares_counts else ()),
            *compared(comparison.programs()),
            *_about_limits(knowledge, comparison, limits, units),
            *named(beside, limit_words, knowledge, units),
            *accuracy,
            *assumptions(knowledge, chosen, config, accuracy),
            *knowledge.memory.notes(outlook.questions.iloc[[choice.index]]),
            *rates_found(measured, chosen.batch.global_batch_size),
            *critical_batch(need, config["samples_curve"]),
            *cut_to_an_epoch(rule),
            *about_efficiency(table, base.world_size),
            *not_chosen(rule, table, is_proposed=is_proposed, is_accepted=is_accepted),
            *(() if choice.meets else (considered(rule, table, wanted),)),
            *not_considered(knowledge, table, wanted),
            *not_identifiable(gaps, subject.is_emulated),
        ),
        left_out=knowledge.rows.left_out,
        left_out_of_convergence=need.law.left_out if need.law else {},
        num_observations=len(measured),
        sweep_gpu_hours=float(known_s.sum()) / 3600 if len(known_s) else None,
        is_emulated=subject.is_emulated,
        law=law.name,
        formula=law.reference,
        parameters=parameters,
        memory_limits=limits_of_memory(measured),
    )


def _about_limits(
    knowledge: Knowledge, comparison: Comparison, limits: Constraints, units: Units
) -> Iterator[Fact]:
    """Note what costs are, what is worth granting, and what can be met."""
    choice = comparison.choice
    if limits.price is not None:
        is_interruptible = knowledge.subject.is_interruptible
        yield Fact.of("costs_contain", is_interruptible=is_interruptible)
    if knowledge.compares_counts:
        yield from worth_granting(comparison.printed, choice.index, limits)
    if limits.limited and not choice.meets:
        found = nearest(comparison.every, limits, units)
        yield nearest_of(found, limits.confidence)


def _parameters(law: str, table: pd.DataFrame) -> tuple[ParameterRow, ...]:
    named = table.rename(columns={"identified": "is_identified"})
    return tuple(
        ParameterRow(law=law, **{str(name): row[name] for name in row})
        for row in named.to_dict("records")
    )

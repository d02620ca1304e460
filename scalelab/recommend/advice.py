"""The recommendation of an allocation, from observations and a job.

Where nothing meets the limits, it says what comes nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from scalelab.inputs.numerals import counted, number, rounded_up
from scalelab.inputs.outcome import Support
from scalelab.inputs.placeholders import Untold
from scalelab.kinds.resources import Resource, Units
from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    measured_factorisation,
)
from scalelab.laws.published import law_named
from scalelab.laws.rows import FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Gap
from scalelab.recommend.afterwards.calibration import Calibration
from scalelab.recommend.answer.argument_words import is_stable
from scalelab.recommend.answer.evidence import RateRow
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.failures import (
    divergence,
    failures,
    limits_of_memory,
    why_no_answer,
)
from scalelab.recommend.answer.recommendation import (
    AskedPart,
    BasisPart,
    ChosenPart,
    ParameterRow,
    Recommendation,
)
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.comparison import Comparison, grounds, in_draws, why_not
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
    batches_differ,
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
from scalelab.recommend.prediction.knee import find_knee, last_paying
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.recommend.prediction.next_trial import next_trial
from scalelab.recommend.prediction.outlook import (
    Baseline,
    Outlook,
    interrupted,
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
    allocation_label,
    candidates,
    places,
)
from scalelab.recommend.question.choice import Choice
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints
from scalelab.records.afterwards.followed import KeptJob
from scalelab.records.columns import OPTION_PREFIX


def nearest(every: Outlook, limits: Constraints, units: Units) -> list[dict[str, Any]]:
    """Return the nearest of each limit that can be met if the others stay.

    ``amount`` is the least limit that a row would hold with the asked confidence; None
    where none would, since a target is reached too seldom.
    """
    found, units = [], units._replace(energy_source="")
    for resource, limit in limits.limited:
        rest = {n: limit for n, limit in limits.limits.items() if n != resource.name}
        others = replace(limits, limits=rest)
        within = [
            resource.in_words(amount, units) for resource, amount in others.limited
        ]
        holds = others.held(every.spent) & every.reached
        needed = _quantile(every.spent.of(resource), holds, limits.confidence)
        needed = np.where(every.is_eligible, needed, np.inf)
        at = int(needed.argmin())
        is_met = bool(np.isfinite(needed[at]))
        row = every.frame.iloc[at]
        size = int(row["world_size"])
        found.append(
            {
                "resource": resource.name,
                "limit": float(limit),
                "asked": resource.in_words(limit, units),
                "amount": float(needed[at]) if is_met else None,
                "ratio": float(needed[at] / limit) if is_met else None,
                "needed": _at_most(resource, needed[at], units) if is_met else "",
                "within": within,
                "most_likely": float(holds.mean(axis=0)[every.is_eligible].max()),
                "world_size": size,
                "allocation": allocation_label(size, int(row["num_nodes"])),
            }
        )
    return found


def nearest_of(found: Iterable[Mapping[str, Any]], confidence: float) -> Fact:
    """Note the nearest limits that can be met: of each resource the least."""
    least: dict[str, Mapping[str, Any]] = {}
    for miss in found:
        name, amount = miss["resource"], miss["amount"]
        known = least.setdefault(name, miss)["amount"]
        if known is None or (amount is not None and amount < known):
            least[name] = miss
    return Fact.of("nearest", confidence=confidence, limits=[*least.values()])


def worth_granting(
    printed: Outlook, chosen: int, limits: Constraints
) -> Iterator[Fact]:
    """Note from how many to how many devices are worth granting, if several are."""
    sizes, least = printed.sizes, limits.min_marginal_return
    last = max(chosen, int(last_paying(printed.time_s[None], sizes, least)[0]))
    pays = printed.meets(limits) & (np.arange(len(sizes)) <= last)

    granted = sizes[pays]
    if len(granted) > 1 and pays[chosen]:
        yield Fact.of(
            "worth_granting",
            least=int(granted.min()),
            most=int(granted.max()),
            best=int(sizes[chosen]),
        )


def _quantile(amounts: np.ndarray, holds: np.ndarray, share: float) -> np.ndarray:
    """Return the least amounts that so many draws keep, where all else holds too."""
    ranked = np.sort(np.where(holds, amounts, np.inf), axis=0)
    place = int(np.ceil(share * len(ranked) - 1e-9)) - 1
    return np.asarray(ranked[place])


def _at_most(resource: Resource, amount: float, units: Units) -> str:
    scale, unit = resource.unit(amount, units)
    return f"{number(rounded_up(amount / scale))} {unit}"


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
    room: Allocation | None = None,
    devices_on_node: int | None = None,
    history: History | None = None,
    link: Link | None = None,
    accept_unmeasured: bool = False,
    untold: UntoldByProgram = MappingProxyType({}),
    device: DeviceKind | None = None,
    followed: Sequence[KeptJob] = (),
) -> Considered:
    """Fit the laws of one kind of device, and compare its allocations for a job."""
    limits = constraints or Constraints()
    every = prepared(observations)
    compared_by = compared_columns(every.observations)
    compared_by |= {name.removeprefix(OPTION_PREFIX) for name in compared_by}
    among = {n: value for n, value in (select or {}).items() if n in compared_by}
    others = {n: value for n, value in (select or {}).items() if n not in among}
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
        calibration=Calibration.of(followed, limits.interval),
        interval=limits.interval,
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
        room=room,
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
    room: Allocation | None  # all devices of the site
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
        choice, outlook = self.comparison.choice, self.comparison.printed
        base = Baseline.of(self.knowledge.rows, self.knowledge.step_times)
        table = outlook_rows(outlook, choice.index, base, self.limits, self.knowledge)
        asked, chosen = self._asked(), self._chosen(table, base)
        rates = measured_rates(self.knowledge.need, self.knowledge.subject.everywhere)
        facts = tuple(self._facts(asked, chosen, base, rates))
        basis = self._basis(facts, rates)
        return Recommendation(**vars(asked), **vars(chosen), **vars(basis))

    @property
    def _units(self) -> Units:
        return self.limits.units(self.knowledge.subject.device_hour_word)

    @property
    def _config(self) -> dict[str, Any]:
        """The configuration of the chosen row, by column of the outlook."""
        frame = self.comparison.printed.frame
        (config,) = frame.iloc[[self.comparison.choice.index]].to_dict("records")
        return {str(name): value for name, value in config.items()}

    def _asked(self) -> AskedPart:
        subject, limits = self.knowledge.subject, self.limits
        limit_words = limits.in_words(self._units)
        if self.knowledge.need.uses_law:
            limit_words = (*limit_words, str(self.knowledge.need.target))

        return AskedPart(
            workload=subject.workload,
            device_name=subject.device_name,
            node_group=subject.node_group,
            device_word=subject.device_word,
            device_hour_word=subject.device_hour_word,
            is_emulated=subject.is_emulated,
            held=self.knowledge.held,
            limits=limit_words,
            limited={name: float(limit) for name, limit in limits.limits.items()},
            conditions=limits.conditions,
            interval=limits.interval,
            confidence=limits.confidence,
            price=limits.charges_in_words(subject.device_hour_word) or None,
            currency=self._units.currency,
        )

    def _chosen(self, table: tuple[OutlookRow, ...], base: Baseline) -> ChosenPart:
        knowledge, limits = self.knowledge, self.limits
        choice, outlook = self.comparison.choice, self.comparison.printed
        row, config = table[choice.index], self._config

        return ChosenPart(
            rows=table,
            meets_constraints=choice.meets and bool(config["is_accurate"]),
            condition=condition(knowledge, row),
            objective=choice.rule,
            baseline=counted(base.world_size, knowledge.subject.device_word),
            learning_rate=learning_rate(
                knowledge.subject.frame,
                int(row.batch.global_batch_size),
                knowledge.need.rate_settings(int(config["samples_curve"])),
            ),
            knee=find_knee(outlook, knowledge, limits.min_marginal_return),
            next_trial=next_trial(
                table,
                choice.index,
                outlook,
                knowledge,
                limits,
                self.gaps,
                self.within or self.room,
                is_open=not all(
                    is_stable(drawn.values)
                    for drawn in in_draws(knowledge, self.comparison)
                ),
            ),
        )

    def _basis(self, facts: tuple[Fact, ...], rates: tuple[RateRow, ...]) -> BasisPart:
        knowledge, interval = self.knowledge, self.limits.interval
        subject, law, need = knowledge.subject, knowledge.law, knowledge.need
        measured = knowledge.rows.observations
        spent_s = numbers(subject.everywhere, "allocated_gpu_s")
        known_s = spent_s[np.isfinite(spent_s)]

        parameters = _parameters("step time", law.parameters(interval))
        if need.law is not None:
            parameters += _parameters("convergence", need.law.parameters(interval))

        return BasisPart(
            facts=facts,
            left_out=knowledge.rows.left_out,
            left_out_of_convergence=need.law.left_out if need.law else (),
            num_observations=len(measured),
            widened_by=knowledge.calibration.widened_by,
            sweep_gpu_hours=float(known_s.sum()) / 3600 if len(known_s) else None,
            law=law.name,
            formula=law.reference,
            parameters=parameters,
            memory_limits=limits_of_memory(measured),
            evidence=evidence(self.whole, subject.frame, self.factorisation, rates),
        )

    def _facts(
        self,
        asked: AskedPart,
        chosen: ChosenPart,
        base: Baseline,
        rates: tuple[RateRow, ...],
    ) -> Iterator[Fact]:
        """Yield what the answer says of itself, in the order in which it is said."""
        knowledge, comparison, units = self.knowledge, self.comparison, self._units
        subject, need, rule = knowledge.subject, knowledge.need, knowledge.rule
        rows, law, choice = chosen.rows, knowledge.law.name, comparison.choice
        measured, beside = knowledge.rows.observations, comparison.named()
        row, config = rows[choice.index], self._config
        is_accepted = self.accepts_unmeasured

        yield from batches_differ(knowledge, rows)
        yield from believed(rows, law, self.link, is_accepted=is_accepted)
        yield from missed(
            need, rates, rows, subject.everywhere, subject.device_hour_word
        )

        if row.barred_by == "contradicted":
            yield Fact("nothing_chosen")
        else:
            yield from why_not(comparison, rows, rule, beside, units)
        yield from grounds(knowledge, comparison, config)
        yield from failures(measured)
        yield from divergence(measured)

        if knowledge.compares_counts:
            yield from against_cheapest(rows)

        yield from compared(comparison.programs())
        yield from self._about_limits()
        yield from named(beside, asked.limits, knowledge, units)

        accuracy = [*knowledge.accuracy.notes(config)]
        yield from accuracy
        yield from assumptions(knowledge, row, config, accuracy)
        chosen_question = comparison.printed.questions.iloc[[choice.index]]
        yield from knowledge.memory.notes(chosen_question)
        yield from knowledge.calibration.notes(self.limits.interval)
        yield from rates_found(measured, row.batch.global_batch_size)
        yield from critical_batch(need, config["samples_curve"])
        yield from cut_to_an_epoch(rule)
        yield from about_efficiency(rows, base.world_size)

        guessed = {row.world_size for row in rows if row.basis == Support.NOT_MEASURED}
        proposed = chosen.next_trial
        is_proposed = proposed is not None and proposed.world_size in guessed
        yield from not_chosen(
            rule, rows, is_proposed=is_proposed, is_accepted=is_accepted
        )

        if not choice.meets:
            yield considered(rule, rows, self.wanted)

        yield from not_considered(knowledge, rows, self.wanted)
        if self.room is not None and not self.room.holds(row.world_size, row.num_nodes):
            yield Fact.of(
                "beyond_the_site", allocation=row.allocation, site=str(self.room)
            )
        yield from not_identifiable(self.gaps, subject.is_emulated)
        if self.within is None and law == StepTimeLaw.name:
            yield from link_unknown(rows, self.link)

    def _about_limits(self) -> Iterator[Fact]:
        """Note what costs are, what is worth granting, and what can be met."""
        choice, limits = self.comparison.choice, self.limits
        if limits.price is not None:
            is_interruptible = self.knowledge.subject.is_interruptible
            yield Fact.of("costs_contain", is_interruptible=is_interruptible)
        if self.knowledge.compares_counts:
            yield from worth_granting(self.comparison.printed, choice.index, limits)
        if self._config["barred_by"] == "contradicted":
            return
        if limits.limited and not choice.meets:
            found = nearest(self.comparison.every, limits, self._units)
            yield nearest_of(found, limits.confidence)


def _check_sequence_length(subject: AskedCurves, job: Job | None) -> None:
    asked = job and job.sequence_length
    measured = numbers(subject.frame, "sequence_length")
    other = measured[np.isfinite(measured) & (measured != asked)]
    if asked and len(other):
        raise SpecError(
            f"job.sequence_length={asked}, but trials measured samples "
            f"of {other[0]:g} tokens. Correct the job, or leave sequence_length out "
            "and say the length in samples.",
            code="other_sequence_length",
        )


def _parameters(law: str, table: pd.DataFrame) -> tuple[ParameterRow, ...]:
    named = table.rename(columns={"identified": "is_identified"})
    return tuple(
        ParameterRow(law=law, **{str(name): row[name] for name in row})
        for row in named.to_dict("records")
    )

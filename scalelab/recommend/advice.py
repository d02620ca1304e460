"""The recommendation of an allocation, from observations and a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

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
from scalelab.inputs.wording import Option
from scalelab.laws.convergence.time_to_target import measured_factorisation
from scalelab.laws.published import law_named
from scalelab.laws.rows import Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Gap
from scalelab.recommend.answer.failures import failures, limits_of_memory, why_no_answer
from scalelab.recommend.answer.recommendation import ParameterRow, Recommendation
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
from scalelab.recommend.notes import (
    Named,
    about_efficiency,
    against_cheapest,
    assumptions,
    believed,
    compared,
    condition,
    considered,
    cut_to_an_epoch,
    just_short,
    link_unknown,
    named,
    not_chosen,
    not_considered,
    not_identifiable,
    runs_as_one_process,
)
from scalelab.recommend.prediction.efficiency import Baseline
from scalelab.recommend.prediction.knee import find_knee, last_paying
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.recommend.prediction.next_trial import next_trial
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
    look_ahead,
    outlook_rows,
)
from scalelab.recommend.prediction.rates import (
    critical_batch,
    learning_rate,
    measured_rates,
    missed,
)
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import (
    MemoryRoom,
    UntoldByProgram,
    candidates,
    is_printed,
    places,
)
from scalelab.recommend.question.objective import Choice, Constraints, beating, choose
from scalelab.records.columns import OPTION_PREFIX, PROGRAM_COLUMN

_EVEN = 0.5  # confidence at which the likeliest of what is not sure enough is named
_NEAR = 0.05  # by which a confidence is near another one
_EDGE = 0.1  # by which the chance that a doubling pays is near an even one
# A row that takes so much less time for so little more is named
_MUCH_FASTER, _LITTLE_MORE = 1.5, 0.1


def recommend(
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
) -> Recommendation:
    """Recommend an allocation for a job."""
    limits = constraints or Constraints()
    every = prepared(observations)
    compared_by = compared_columns(every.observations)
    compared_by |= {name.removeprefix(OPTION_PREFIX) for name in compared_by}
    among = {n: of for n, of in (select or {}).items() if n in compared_by}
    others = {n: of for n, of in (select or {}).items() if n not in among}
    subject = choose_subject(every.observations, others)
    _check_sequence_length(subject, job)
    rows = every.take(subject.frame.index)
    if rows.frame.empty:
        raise UnmeasuredError(why_no_answer(rows))
    rest = every.take(every.observations.index.drop(subject.frame.index))
    named = law_named(law)
    fitted, learned = fit_step_times(named, rows, rest, history=history, link=link)
    need = SampleNeed.of(subject.every_group, job, limits.target, among)
    selected = with_settings(rows, among)
    whole = every.take(subject.every_group.index)
    whole_runs = whole_run_law(whole.observations, among, need)
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
            converged=need.measured_batches() if need.uses_law else (),
            normalizes_locally=need.normalization == "local_batch_size",
        ),
        memory=MemoryRoom.of(subject.frame),
        accuracy=Accuracy.of(subject.every_group, rows.curves, limits),
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
    comparison = Comparison.of(
        asked, knowledge, limits, gpus, accepts_unmeasured=accept_unmeasured
    )
    wanted = sorted({*gpus})
    if within is not None:
        has_devices = asked["world_size"] <= within.world_size
        asked = asked[has_devices & (asked["num_nodes"] <= within.num_nodes)]
    answer = _answer(
        knowledge, comparison, fitted.gaps_at(asked), limits, within, wanted
    )
    beliefs = believed(answer.rows, law, link, is_accepted=accept_unmeasured)
    rates = measured_rates(need, subject.every_group)
    late = missed(
        need, rates, answer.rows, subject.every_group, subject.device_hour_word
    )
    beside = evidence(whole, subject.frame, factorisation, rates)
    may_cross = within is None and law == StepTimeLaw.name
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
) -> Recommendation:
    subject, law, need = knowledge.subject, knowledge.law, knowledge.need
    measured = knowledge.rows.observations
    rule, outlook, choice = knowledge.rule, comparison.printed, comparison.choice
    base = Baseline.of(knowledge.rows, knowledge.step_times)
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
            None if knowledge.whole_runs else law,
            limits.min_marginal_return,
            knowledge.rows,
        ),
        next_trial=proposed,
        price=limits.charges_in_words(subject.device_hour_word),
        facts=(
            *failures(measured),
            *(against_cheapest(table) if knowledge.compares_counts else ()),
            *compared(comparison.programs),
            *named(comparison.named, limit_words, knowledge),
            *(() if limits.limited else just_short(chosen, limits.min_marginal_return)),
            *accuracy,
            *assumptions(knowledge, chosen, config, accuracy),
            *knowledge.memory.notes(outlook.questions.iloc[[choice.index]]),
            *critical_batch(need, config["samples_curve"]),
            *cut_to_an_epoch(rule),
            *about_efficiency(table, base.world_size),
            *not_chosen(rule, table, is_proposed=is_proposed),
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


def _parameters(law: str, table: pd.DataFrame) -> tuple[ParameterRow, ...]:
    named = table.rename(columns={"identified": "is_identified"})
    return tuple(
        ParameterRow(law=law, **{str(name): row[name] for name in row})
        for row in named.to_dict("records")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The candidates that an answer shows, and the one that it recommends."""

    printed: Outlook
    choice: Choice
    named: list[Named]
    # The best configuration of each of several programs, one row, on as many devices
    programs: Mapping[str, Outlook]

    @classmethod
    def of(
        cls,
        asked: pd.DataFrame,
        knowledge: Knowledge,
        limits: Constraints,
        gpus: Sequence[int],
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
        is_shown = is_printed(best.sizes, knowledge.rows.frame, gpus)
        is_shown |= not is_shown[best.is_eligible].any()
        word = knowledge.subject.device_word
        if not limits.limited:
            best, is_shown = best.take(is_shown), is_shown[is_shown]
        choice = _choose(best, limits, word)
        is_shown[choice.index] = True
        printed, at = best.take(is_shown), int(is_shown[: choice.index].sum())
        every = every.take(np.isin(every.sizes, printed.sizes))
        named = [*_named(every, printed, at, limits, word)]
        if not (knowledge.compares_counts or accepts_unmeasured):
            named = [each for each in named if each[0] == "not_sure_enough"]
            if choice.meets or not limits.limited:
                choice = replace(choice, rule=f"no other {word} count was measured")
        return cls(
            printed=printed,
            choice=replace(choice, index=at),
            named=named,
            programs=_best_of_programs(every, best.sizes[choice.index], limits),
        )


def _best_of_programs(
    every: Outlook, size: float, limits: Constraints
) -> dict[str, Outlook]:
    """Return the best configuration of each program on so many devices, by program.

    A program that never came to the target is not among them.
    """
    best = {}
    if PROGRAM_COLUMN in every.frame.columns:
        for name, own in every.frame[every.sizes == size].groupby(PROGRAM_COLUMN):
            alike = every.take(own.index.to_numpy())
            best[str(name)] = alike.take(best_of_each_size(alike, limits))
    return best


def _choose(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    time, eligible = best.time_s, best.is_eligible
    last = int(last_paying(time[None], best.sizes, limits.min_marginal_return)[0])
    is_known = best.frame["support"].ne(Support.EXTRAPOLATED) | best.frame["is_tried"]
    is_known = is_known.to_numpy(bool) & eligible
    paying = is_known & (np.arange(len(time)) <= last)
    if not paying.any():
        first = (is_known if is_known.any() else eligible).argmax()
        paying = np.arange(len(time)) == first
    spent, measured = best.spent.medians(), best.is_measured
    choice = choose(
        spent, best.probability, eligible, paying, measured, limits, device_word
    )
    if not limits.limited and choice.index < last:
        more = "more were not measured"
        rule = f"{choice.rule}; {more}" if choice.index else f"{more}, though they pay"
        choice = replace(choice, rule=rule)
    may_win, index = best.meets(limits), choice.index
    while (beats := beating(best.spent, index, may_win)).any():
        may_win[index] = False
        index = int(np.where(beats, time, np.inf).argmin())
    if index == choice.index:
        return choice
    first = counted(int(best.sizes[choice.index]), device_word)
    rule = f"clearly faster or cheaper than {first}, and not worse in the other"
    rule += f" ({first}: {choice.rule})"
    return Choice(index=index, meets=True, rule=rule)


def _picked(every: Outlook, limits: Constraints, device_word: str) -> Outlook | None:
    """Return the one row that would be chosen; None where nothing meets the limits."""
    if not every.is_eligible.any():
        return None
    best = every.take(best_of_each_size(every, limits))
    choice = _choose(best, limits, device_word)
    return best.take(np.array([choice.index])) if choice.meets else None


def _nearly_paying(best: Outlook, at: int, limits: Constraints) -> Iterator[Named]:
    """Yield what would be chosen if doublings had to pay more, or less, surely."""
    rows, least = np.arange(len(best.sizes)), _EVEN - _EDGE
    last = last_paying(best.expected_s, best.sizes, limits.min_marginal_return)
    pays = last[:, None] >= rows
    chance = pays.mean(axis=0)
    may_be = (best.frame["support"] != Support.EXTRAPOLATED) & best.is_eligible
    for sure in (least, limits.confidence)[: 1 + (chance[at] < _EVEN + _EDGE)]:
        found = rows[may_be & (chance >= sure)][-1:]
        if len(found) and found[0] != at and chance[at] >= least:
            row = replace(best.take(found), held=pays[:, found])
            yield "on_the_edge", row, best.take(np.array([at]))


def _named(
    every: Outlook, best: Outlook, at: int, limits: Constraints, word: str
) -> Iterator[Named]:
    """Yield what else would be chosen, what is much faster, and what is safe now."""
    chosen, sure = best.take(np.array([at])), limits.confidence
    measured, even = every.take(every.is_measured), replace(limits, confidence=_EVEN)
    if limits.limited:
        found = _picked(measured, even, word)
        is_same = found and found.questions.equals(chosen.questions)
        if found and found.probability[0] < sure and not is_same:
            yield "not_sure_enough", found, chosen
        step = min(_NEAR, (1 - sure) / 2)
        for near in (sure - step, sure + step):
            found = _picked(every, replace(limits, confidence=near), word)
            if found and found.sizes[0] != chosen.sizes[0]:
                yield "on_the_edge", found, chosen
    else:
        yield from _nearly_paying(best, at, limits)
    if chosen.probability[0] < sure:
        return
    time_s, amount = best.time_s, best.spent.medians().of(best.spent.cost)
    is_worth = best.meets(limits) & (_MUCH_FASTER * time_s <= time_s[at])
    is_worth &= amount <= (1 + _LITTLE_MORE) * amount[at]
    if is_worth.any():
        fastest = int(np.where(is_worth, time_s, np.inf).argmin())
        yield "faster", best.take(np.array([fastest])), chosen
    if not chosen.is_measured[0]:
        yield "to_submit_now", _picked(measured, limits, word) or chosen, chosen
        return
    allowed = every.frame.assign(is_eligible=every.is_allowed_batch)
    better = _picked(replace(every, frame=allowed), even, word)
    if better and (better.frame["support"] == Support.NOT_MEASURED).all():
        yield "to_submit_now", chosen, better

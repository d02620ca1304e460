"""The recommendation of an allocation, from observations and a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from scalelab.experiment.job import Job
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.laws.convergence.time_to_target import (
    measured_factorisation,
)
from scalelab.laws.rivals.laws import law_named
from scalelab.laws.rows import CONFIGURATION, FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Gap, Support
from scalelab.recommend.answer.recommendation import (
    ParameterRow,
    Recommendation,
)
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.notes import assumptions, not_considered, not_identifiable
from scalelab.recommend.prediction.knee import find_knee, last_paying
from scalelab.recommend.prediction.learning_rate import learning_rate
from scalelab.recommend.prediction.next_trial import loss, next_trial
from scalelab.recommend.prediction.outlook import (
    Outlook,
    baseline_index,
    look_ahead,
    outlook_rows,
)
from scalelab.recommend.prediction.workload_samples import SampleNeed
from scalelab.recommend.question.candidates import (
    BatchRule,
    candidates,
    places,
)
from scalelab.recommend.question.history import History, LawWithTransfer
from scalelab.recommend.question.memory_room import MemoryRoom
from scalelab.recommend.question.objective import Choice, Constraints, choose
from scalelab.recommend.question.subject import choose_subject


def recommend(
    observations: Observed,
    job: Job | None,
    *,
    constraints: Constraints | None = None,
    allocations: Sequence[Allocation] | None = None,
    select: Mapping[str, Scalar] | None = None,
    law: str = "scalelab",
    within: Allocation | None = None,
    devices_on_node: int | None = None,
    history: History | None = None,
) -> Recommendation:
    """Recommend an allocation for a job.

    Parameters
    ----------
    observations
        Rows of the observations frame; one workload on one kind of device, or narrowed
        to that by ``select``.
    job
        How much there is to train; None: until the target of the constraints.
    constraints
        Limits and how sure the answer must be; None: no limits.
    allocations
        Allocations to consider besides the measured ones; None: doublings up to 4 times
        the largest measured world size.
    select
        Values by column that narrow the observations.
    law
        Name of the step-time law, see :data:`scalelab.laws.rivals.laws.LAWS`.
    within
        The largest allocation that can be measured; None: there is no limit.
    devices_on_node
        Devices that a node holds; None: the most that were measured on one.
    history
        Other runs that inform the step-time law; None: there are none.

    Returns
    -------
    Recommendation
        ``meets_constraints`` is False where nothing holds every limit; the chosen row
        is then the closest.

    Raises
    ------
    FitError
        No row has a usable step time, or the target was not measured.
    SpecError
        The observations mix workloads or devices, the law is unknown, or no curve in
        the history is related to an asked one.
    """
    limits = constraints or Constraints()
    every = prepared(observations)
    subject = choose_subject(every.observations, select or {})
    rows = every.take(subject.frame.index)
    index = every.observations.index
    rest = every.take(index[~index.isin(subject.frame.index)])
    fitted = LawWithTransfer.fit(law_named(law), rows, rest=rest, history=history)
    need = SampleNeed.of(subject.every_group, job, limits.target)
    whole = every.take(subject.every_group.index)
    knowledge = Knowledge(
        subject=subject,
        fitted=fitted,
        need=need,
        factorisation=measured_factorisation(whole, law_named(law))
        if need.uses_law
        else None,
        rows=rows,
        rule=BatchRule.of(rows.frame),
        memory=MemoryRoom.of(subject.frame),
    )
    where = places(rows.frame, allocations, devices_on_node)
    asked = _fitting(candidates(rows.curves, where, knowledge.rule), knowledge)
    gaps = knowledge.law.blocking(
        _in_reach(asked, within) if knowledge.is_few else asked
    )
    if knowledge.is_few:
        asked = asked[_is_measured(asked, rows)].reset_index(drop=True)
    outlook = look_ahead(
        asked, knowledge.law, knowledge.need, limits, knowledge.correction
    )
    wanted = sorted({place.world_size for place in allocations or ()})
    return _answer(knowledge, outlook, gaps, limits, within, wanted)


def _answer(
    knowledge: Knowledge,
    outlook: Outlook,
    gaps: tuple[Gap, ...],
    limits: Constraints,
    within: Allocation | None,
    wanted: Sequence[int],
) -> Recommendation:
    subject, law, need = knowledge.subject, knowledge.law, knowledge.need
    choice = _choose(outlook, limits, subject.device_word)
    baseline, baseline_text = baseline_index(outlook.frame, subject.device_word)
    has_limits = limits.any_limit or need.uses_law
    table = outlook_rows(
        outlook, choice.index, baseline, has_limits, limits, knowledge.swept
    )
    losses = loss(outlook.spent, outlook.sizes, limits)
    return Recommendation(
        workload=subject.workload,
        device_name=subject.device_name,
        node_group=subject.node_group,
        device_word=subject.device_word,
        device_hour_word=subject.device_hour_word,
        rows=table,
        meets_constraints=choice.meets,
        limits=(
            *limits.in_words(subject.device_hour_word),
            *([str(need.target)] if need.uses_law else []),
        ),
        objective=choice.rule,
        interval=limits.interval,
        baseline=baseline_text,
        learning_rate=learning_rate(
            subject.frame,
            int(table[choice.index].batch.global_batch_size),
            str(outlook.frame["samples_rule"].iloc[choice.index]),
        ),
        knee=find_knee(
            outlook.expected_s,
            outlook.questions,
            np.median(outlook.samples, axis=0),
            law,
            limits.min_marginal_return,
        ),
        next_trial=next_trial(
            table,
            losses,
            outlook.spent.time_s,
            gaps,
            subject.frame,
            knowledge.rule,
            within,
        ),
        price=limits.price.in_words(subject.device_hour_word) if limits.price else None,
        notes=(
            *assumptions(knowledge, table[choice.index]),
            *knowledge.memory.notes(
                outlook.questions.iloc[[choice.index]], subject.device_word
            ),
            *not_considered(knowledge, wanted, {row.world_size for row in table}),
        ),
        unsupported=tuple(
            dict.fromkeys(not_identifiable(gap, subject.is_emulated) for gap in gaps)
        ),
        left_out=law.left_out,
        left_out_of_convergence=need.law.left_out if need.law else {},
        num_observations=len(subject.frame),
        sweep_gpu_hours=_sweep_cost(subject.every_group),
        is_emulated=subject.is_emulated,
        law=law.name,
        formula=law.reference,
        parameters=_parameters(law, need, limits.interval),
    )


def _fitting(asked: pd.DataFrame, knowledge: Knowledge) -> pd.DataFrame:
    """Drop configurations that are not measured and are known not to fit in memory."""
    known = _is_measured(asked, knowledge.rows)
    fits = knowledge.memory.fits(asked)
    chosen: pd.DataFrame = asked[fits | known].reset_index(drop=True)
    return chosen


def _is_measured(asked: pd.DataFrame, rows: FitRows) -> np.ndarray:
    known = rows.frame[list(CONFIGURATION)].drop_duplicates().astype(int)
    found = asked.merge(known, how="left", indicator=True)["_merge"]
    return (found == "both").to_numpy(bool)


def _in_reach(asked: pd.DataFrame, within: Allocation | None) -> pd.DataFrame:
    """Return the configurations there are devices and nodes for."""
    if within is None:
        return asked
    has_devices = asked["world_size"] <= within.world_size
    return asked[has_devices & (asked["num_nodes"] <= within.num_nodes)]


def _choose(outlook: Outlook, limits: Constraints, device_word: str) -> Choice:
    time = outlook.time_s
    last = int(last_paying(time[None], outlook.sizes, limits.min_marginal_return)[0])
    is_known = (outlook.frame["support"] != Support.EXTRAPOLATED).to_numpy()
    paying = is_known & (np.arange(len(time)) <= last)
    if not paying.any():
        paying = np.arange(len(time)) == is_known.argmax()
    return choose(
        outlook.spent.medians(),
        outlook.held.mean(axis=0),
        paying,
        limits,
        device_word,
    )


def _sweep_cost(frame: pd.DataFrame) -> float | None:
    seconds = numbers(frame, "allocated_gpu_s")
    known = seconds[np.isfinite(seconds)]
    return float(known.sum()) / 3600 if len(known) else None


def _parameters(
    law: StepTimeLaw, need: SampleNeed, interval: float
) -> tuple[ParameterRow, ...]:
    tables = [("step time", law.parameters(interval))]
    if need.law is not None:
        tables.append(("convergence", need.law.parameters(interval)))
    return tuple(
        ParameterRow(
            law=title,
            curve=str(row["curve"]),
            name=str(row["name"]),
            value=float(row["value"]),
            lo=float(row["lo"]),
            hi=float(row["hi"]),
            unit=str(row["unit"]),
            is_identified=bool(row["identified"]),
            remedy=str(row["remedy"]),
        )
        for title, table in tables
        for _, row in table.iterrows()
    )

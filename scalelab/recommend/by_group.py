"""One answer where nodes are of several groups: the best of what each answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.kinds.resources import RESOURCES
from scalelab.laws.rows import FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.answer.recommendation import OutlookRow, Recommendation
from scalelab.recommend.question.candidates import UntoldByProgram
from scalelab.recommend.question.history import History
from scalelab.recommend.question.objective import (
    Constraints,
    Spending,
    counted_chances,
)
from scalelab.recommend.question.run_site import Price, RunSite
from scalelab.recommend.question.subject import NODE_GROUP
from scalelab.site.profile import Site


def answer(
    question: Question,
    observations: Observed,
    sites: Mapping[str | None, RunSite],
    history: History | None = None,
    untold: UntoldByProgram = MappingProxyType({}),
) -> Recommendation:
    """Answer for each node group that was measured, and return the best answer."""
    answers: dict[str | None, Recommendation] = {}
    problems: dict[str | None, FitError | SpecError] = {}
    rows = prepared(observations)
    groups = _groups(rows.observations, question.select)
    histories = _histories(history, rows, groups)
    for group in groups:
        try:
            answers[group] = _in_group(
                question, rows, group, sites.get(group), histories[group], untold
            )
        except (FitError, SpecError) as error:
            problems[group] = error
    if not answers:
        raise next(iter(problems.values()))
    if len(answers) + len(problems) == 1:
        return next(iter(answers.values()))
    best, rule = _best(answers, question.limits)
    rest = {str(each): answers[each].chosen for each in answers if each != best}
    missing = (
        Fact("group_not_compared", {"group": group, "why": str(problem)})
        for group, problem in problems.items()
    )
    return replace(
        answers[best],
        elsewhere=rest,
        objective=f"{answers[best].objective}; of the node groups, {rule}",
        facts=(*answers[best].facts, *missing),
    )


def _groups(
    observations: pd.DataFrame, select: Mapping[str, Scalar]
) -> Sequence[str | None]:
    if NODE_GROUP in select:
        return (str(select[NODE_GROUP]),)
    if NODE_GROUP not in observations.columns:
        return (None,)
    return tuple(map(str, observations[NODE_GROUP].dropna().unique())) or (None,)


def _histories(
    history: History | None, rows: FitRows, groups: Sequence[str | None]
) -> Mapping[str | None, History | None]:
    """Return the history for each group that it informs.

    If it informs none, every group gets it and refuses it with its own message.
    """
    informed = [
        group
        for group in groups
        if history is not None and history.informs(_rows_of(group, rows))
    ]
    return {
        each: history if each in informed or not informed else None for each in groups
    }


def _rows_of(group: str | None, rows: FitRows) -> FitRows:
    if group is None:
        return rows
    frame = rows.observations
    return rows.take(frame.index[(frame[NODE_GROUP] == group).fillna(False)])


def _in_group(
    question: Question,
    rows: FitRows,
    group: str | None,
    run_site: RunSite | None,
    history: History | None,
    untold: UntoldByProgram,
) -> Recommendation:
    own, select = _rows_of(group, rows).observations, question.select
    if group is not None:
        select = {**select, NODE_GROUP: group}
    gpus, site = question.gpus, run_site.site if run_site else None
    on_node = site.gpus_per_node if site else None
    within = None
    if run_site and not gpus:
        within = run_site.machine(numbers(own, "world_size"))
    return recommend(
        rows,
        question.job,
        constraints=replace(
            question.limits, price=Price.of(site, question.price_per_gpu_hour_usd)
        ),
        batches=question.batches,
        allocations=_packed(gpus, own, on_node) if gpus else None,
        select=select,
        law=question.law,
        within=within,
        devices_on_node=on_node,
        history=history,
        link=question.between_nodes or _stated_link(site, question.law),
        accept_unmeasured=question.accept_unmeasured,
        untold=untold,
    )


def _stated_link(site: Site | None, law: str) -> Link | None:
    if site is None or site.links is None or law != StepTimeLaw.name:
        return None
    return site.links.between_nodes.link


def _packed(
    gpus: Sequence[int], observations: pd.DataFrame, on_node: int | None
) -> list[Allocation]:
    measured = observations["gpus_per_node"].dropna()
    most = max(int(max(measured, default=1)), on_node or 1)
    return [Allocation.packed(count, devices_on_node=most) for count in gpus]


def _best(
    answers: Mapping[str | None, Recommendation], limits: Constraints
) -> tuple[str | None, str]:
    meeting = {g: found for g, found in answers.items() if found.meets_constraints}
    rows = {group: found.chosen for group, found in (meeting or answers).items()}
    if not meeting:
        closest = min(rows, key=lambda group: _distance(rows[group], limits))
        return closest, "the closest to the limits"
    amounts = [row.amounts for row in rows.values()]
    resource = limits.minimised(
        RESOURCES[name]
        for name in amounts[0]
        if RESOURCES[name].compares_devices and all(each.get(name) for each in amounts)
    )
    spent = {group: Spending.at(row.amounts) for group, row in rows.items()}
    best = min(spent, key=lambda group: float(spent[group].of(resource)))
    return best, f"the one that {resource.least}"


def _distance(row: OutlookRow, limits: Constraints) -> tuple[float, float]:
    """Return how unlikely a row is to hold the limits, then by how much it does not."""
    excess = limits.excess(Spending.at(row.amounts))
    return -float(counted_chances(np.array(row.probability or 0.0))), float(excess)

"""One answer where nodes are of several groups: the best of what each answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.laws.rows import FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.knowledge import NODE_GROUP, History
from scalelab.recommend.question.candidates import UntoldByProgram
from scalelab.recommend.question.objective import (
    Constraints,
    Price,
    RunSite,
    Spending,
    counted_chances,
)


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
    frame = rows.observations
    known = frame.get(NODE_GROUP, pd.Series(dtype=object)).dropna().unique()
    groups: Sequence[str | None] = tuple(map(str, known)) or (None,)
    if NODE_GROUP in question.select:
        groups = (str(question.select[NODE_GROUP]),)
    own = {
        group: rows
        if group is None
        else rows.take(frame.index[(frame[NODE_GROUP] == group).fillna(False)])
        for group in groups
    }
    informed = {group for group in groups if history and history.informs(own[group])}
    for group in groups:
        # that informs no group is said by its own message, for every group
        taught = history if group in informed or not informed else None
        site = sites.get(group)
        try:
            answers[group] = _in_group(
                question, rows, own[group].observations, group, site, taught, untold
            )
        except (FitError, SpecError) as error:
            problems[group] = error
    if not answers:
        raise next(iter(problems.values()))
    if len(groups) == 1:
        return answers[groups[0]]
    best, rule = _best(answers, question.limits)
    missing = (
        Fact.of("group_not_compared", group=group, why=str(problem))
        for group, problem in problems.items()
    )
    return replace(
        answers[best],
        elsewhere={str(each): answers[each].chosen for each in answers if each != best},
        objective=f"{answers[best].objective}; of the node groups, {rule}",
        facts=(*answers[best].facts, *missing),
    )


def _in_group(
    question: Question,
    rows: FitRows,
    own: pd.DataFrame,
    group: str | None,
    run_site: RunSite | None,
    history: History | None,
    untold: UntoldByProgram,
) -> Recommendation:
    for name, value in question.select.items():
        if name in own.columns:
            own = own[own[name].astype("string").eq(str(value)).fillna(False)]
    site, link = run_site.site if run_site else None, question.between_nodes
    on_node, within = site.gpus_per_node if site else None, None
    known = [*numbers(own, "gpus_per_node"), *numbers(own, "devices_of_node")]
    if (most := int(np.nanmax([1.0, *known]))) > 1:
        on_node = max(most, on_node or 1)
    if run_site and not question.gpus:
        within = run_site.machine(numbers(own, "world_size"))
    # only the default law asks for a link
    if not link and site and site.links and question.law == StepTimeLaw.name:
        link = site.links.between_nodes.link
    price = Price.of(site, question.price_per_gpu_hour_usd)
    whole = site.devices_per_node if site and site.exclusive else None
    return recommend(
        rows,
        question.job,
        constraints=replace(question.limits, price=price, devices_on_node=whole),
        batches=question.batches,
        gpus=question.gpus,
        select={**question.select, **({} if group is None else {NODE_GROUP: group})},
        law=question.law,
        within=within,
        devices_on_node=on_node,
        history=history,
        link=link,
        accept_unmeasured=question.accept_unmeasured,
        untold=untold,
    )


def _best(
    answers: Mapping[str | None, Recommendation], limits: Constraints
) -> tuple[str | None, str]:
    meeting = {g: found for g, found in answers.items() if found.meets_constraints}
    rows = {group: found.chosen for group, found in (meeting or answers).items()}
    spent = {group: Spending.at(row.amounts) for group, row in rows.items()}
    if not meeting:
        # the likeliest to hold the limits, then what exceeds them least
        chances = {
            group: float(counted_chances(np.array(row.probability or 0.0)))
            for group, row in rows.items()
        }
        closest = min(rows, key=lambda g: (-chances[g], float(limits.excess(spent[g]))))
        return closest, "the closest to the limits"
    known = [each.known for each in spent.values()]
    resource = limits.minimised(
        of for of in known[0] if of.compares_devices and all(of in k for k in known)
    )
    best = min(spent, key=lambda group: float(spent[group].of(resource)))
    return best, f"the one that {resource.least}"

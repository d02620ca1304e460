"""What the trials of a sweep that are left will take besides device time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.wording import Option
from scalelab.kinds.resources import MONEY
from scalelab.plan.budget import Rate, Spent, devices_alone
from scalelab.records.attempt_io import is_taken
from scalelab.records.observations import frame
from scalelab.session.arguments import RecommendArguments
from scalelab.session.run import Run

if TYPE_CHECKING:
    from scalelab.recommend.question.objective import Constraints
    from scalelab.running.sweep import Sweep
    from scalelab.site.profile import Site


def rate_of(asked: Sweep) -> Rate:
    """Return what a second of a trial costs, in the unit of the sweep's budget.

    Raises
    ------
    SpecError
        The budget is of money, and nothing says the price of a node group, or it is of
        another currency.
    """
    budget = asked.budget
    if budget is None or budget.spent is not Spent.MONEY:
        return devices_alone

    from scalelab.recommend.money.trials import trials_take

    named = {
        group: _limits(asked, site, group) for group, site in asked.site.groups.items()
    }
    for group, limits in named.items():
        where = f" of node group {group}" if group else ""
        limit = Option("budget", budget.in_words(asked.words.hour))
        if limits.price is None:
            raise SpecError(
                f"{limit} needs the price of a device{where}, and nothing says it. Say "
                "price or prices in the site's profile, or a budget in device time, "
                "such as 10gpu-h."
            )
        if budget.currency not in ("", limits.price.currency):
            raise SpecError(
                f"{limit} is in {budget.currency}, and the price{where} in "
                f"{limits.price.currency}. Write the budget in that."
            )

    def rate(group: str | None, num_devices: int, num_nodes: int) -> float:
        second, *sizes = np.array([[1.0], [num_devices], [num_nodes]])
        return trials_take(named[group], second, *sizes)[MONEY.name]

    return rate


def _limits(asked: Sweep, site: Site, group: str | None) -> Constraints:
    """Return what is charged on a node group, whose devices may have no name yet."""
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.by_device import limits_of
    from scalelab.recommend.money.prices import quotes_in
    from scalelab.recommend.question.devices import DeviceKind, kinds_of
    from scalelab.recommend.question.objective import Constraints

    kind = DeviceKind(node_group=group or "", device_type=site.device_type.value)
    if is_taken(asked.directory):
        known = kinds_of(Run.open(asked.directory).observations)
        kind = next((k for k in known if k.node_group == kind.node_group), kind)
    quotes = tuple(quotes_in(Path(site.prices))) if site.prices else ()
    question = Question(limits=Constraints(), quotes=quotes)
    return limits_of(question, kind, frame([]), site)


def spending_to_come(asked: Sweep) -> list[str]:
    """Return in words the money, energy and carbon that the trials left will take.

    It is empty where nothing is known of prices and powers, where prices are of several
    currencies, and before a trial of each kind has ended, in each node group.
    """
    if not (times := asked.source.times_left):
        return []
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.answer.sentences import spent_in_words
    from scalelab.recommend.by_device import limits_of
    from scalelab.recommend.money.trials import in_all, trials_take
    from scalelab.recommend.question.devices import kinds_of
    from scalelab.recommend.question.objective import Constraints

    run = Run.open(asked.directory)
    question = Question(
        limits=Constraints(), quotes=tuple(run.quotes(RecommendArguments()))
    )
    limits = {
        group: limits_of(question, kind, run.observations, asked.site.groups.get(group))
        for kind in kinds_of(run.observations)
        for group in [kind.node_group or None]
    }

    is_known = {trial.node_group for trial, _ in times} <= limits.keys()
    if not is_known or len({limit.units("").currency for limit in limits.values()}) > 1:
        return []

    parts = [
        trials_take(
            limits[trial.node_group],
            *np.array([[held_s], [trial.world_size], [trial.allocation.num_nodes]]),
        )
        for trial, held_s in times
    ]

    units = next(iter(limits.values())).units(asked.words.hour)
    return spent_in_words(in_all(parts), units)

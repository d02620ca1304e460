"""What the trials of a sweep that are left will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import device_time, number
from scalelab.inputs.problems import Option
from scalelab.kinds.resources import MONEY
from scalelab.kinds.sources import SOURCES
from scalelab.launch.timing import longest_s
from scalelab.plan.budget import Rate, Spent, devices_alone
from scalelab.records.attempt import is_taken
from scalelab.records.observations import frame
from scalelab.session.run import Run

if TYPE_CHECKING:
    from scalelab.experiment.trial import Trial
    from scalelab.recommend.question.objective import Constraints
    from scalelab.running.sweep import Sweep


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

    named = _limits(asked)
    for group, limits in named.items():
        where = f" of node group {group}" if group else ""
        limit = Option("budget", budget.in_words(asked.words.hour))
        if limits.price is None:
            raise SpecError(
                f"{limit} needs the price of a device{where}, and nothing says it. Say "
                "price or prices in the site's profile, or a budget in device time, "
                "such as 10gpu-h.",
                code="budget_without_price",
            )
        if budget.currency not in ("", limits.price.currency):
            raise SpecError(
                f"{limit} is in {budget.currency}, and the price{where} in "
                f"{limits.price.currency}. Write the budget in that.",
                code="budget_in_other_currency",
            )

    def rate(group: str | None, num_devices: int, num_nodes: int) -> float:
        second, *sizes = np.array([[1.0], [num_devices], [num_nodes]])
        return trials_take(named[group], second, *sizes)[MONEY.name]

    return rate


def to_come(asked: Sweep) -> Iterator[str]:
    """Yield in lines how much device time and samples the trials left take."""
    left, name = asked.source.left, asked.experiment.source.name
    if asked.num_remaining == 0:
        return

    if asked.budget is not None:
        yield (
            f"The run takes at most {asked.budget.in_words(asked.words.hour)} in all: "
            "its budget."
        )
    elif left is None and SOURCES[name].is_adaptive:
        yield "Device time to come: at most what --sweep-budget allows."
    elif left is None:
        yield "Device time to come: not known; the source of trials does not say."
    elif (times := asked.source.times_left) is not None:
        yield (
            f"Device time to come: about {_amounts(asked, times)}, estimated from "
            "ended trials."
        )
    else:
        programs = asked.experiment.programs()
        longest = [(trial, longest_s(programs[trial.program], trial)) for trial in left]
        yield (
            f"Device time to come: at most {_amounts(asked, longest)}, if every trial "
            "ran once and used up its time limits; measure.timeout lowers them."
        )

    if (share := asked.share_of_job) is not None:
        yield (
            f"Samples to come: {number(100 * share)}% of the job's; trials whose step "
            "times settle late, and long trials, take more."
        )


def _amounts(asked: Sweep, times: Sequence[tuple[Trial, float]]) -> str:
    """Write what trials take, from the seconds of each.

    Money, energy and carbon are left out where a price or a power is not known, and
    where prices are of several currencies.
    """
    seconds = sum(held_s * trial.world_size for trial, held_s in times)
    hours = device_time(seconds / 3600, asked.words.hour)
    charged = [
        (site.price_per_gpu_hour, site.price_per_node_hour, site.prices, site.power_w)
        for site in asked.site.groups.values()
    ]
    if not is_taken(asked.directory) and not any(map(any, charged)):
        return hours  # without the modules that read prices

    limits = _limits(asked)
    if len({limit.units("").currency for limit in limits.values()}) > 1:
        return hours

    from scalelab.recommend.answer.sentences import spent_in_words
    from scalelab.recommend.money.trials import in_all, trials_take

    parts = [
        trials_take(
            limits[trial.node_group],
            *np.array([[held_s], [trial.world_size], [trial.allocation.num_nodes]]),
        )
        for trial, held_s in times
    ]
    units = next(iter(limits.values())).units(asked.words.hour)
    return ", ".join([hours, *spent_in_words(in_all(parts), units)])


def _limits(asked: Sweep) -> dict[str | None, Constraints]:
    """Return what each node group is charged; its devices may have no name yet."""
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.by_device import limits_of
    from scalelab.recommend.money.prices import quotes_in
    from scalelab.recommend.question.devices import DeviceKind, kinds_of
    from scalelab.recommend.question.objective import Constraints

    is_begun = is_taken(asked.directory)
    rows = Run.open(asked.directory).observations if is_begun else frame([])
    kinds = {kind.node_group: kind for kind in kinds_of(rows)}

    limits = {}
    for group, site in asked.site.groups.items():
        named = DeviceKind(node_group=group or "", device_type=site.device_type.value)
        kind = kinds.get(named.node_group, named)
        quotes = tuple(quotes_in(Path(site.prices))) if site.prices else ()
        question = Question(limits=Constraints(), quotes=quotes)
        limits[group] = limits_of(question, kind, rows, site)

    return limits

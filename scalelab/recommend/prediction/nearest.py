"""What can be met where nothing meets the limits, and what is worth granting."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scalelab.inputs.numerals import number, rounded_up
from scalelab.kinds.resources import Resource, Units
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.candidates import allocation_label
from scalelab.recommend.question.objective import Constraints


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

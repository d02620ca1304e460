"""Which of several allocations is best."""

from dataclasses import dataclass

import numpy as np

from scalelab.inputs.numerals import percent
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import CLEARLY, Spending, counted_chances


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Index of the chosen row, whether it meets the limits, and the rule in words."""

    index: int
    meets: bool
    rule: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocations:
    """Allocations to choose from: what each takes, and whether it may be chosen."""

    spent: Spending  # medians
    # each of shape (n_rows,)
    probability: np.ndarray  # that every limit holds
    is_eligible: np.ndarray
    is_measured: np.ndarray


def largest_paying(
    pays: np.ndarray, meets: np.ndarray, limits: Constraints, device_word: str
) -> Choice:
    """Choose the largest world size that pays, where there is no limit.

    ``pays`` and ``meets`` mark rows by increasing world size, shape (n_rows,).
    """
    index = int(np.flatnonzero(pays).max())
    least = percent(limits.min_marginal_return)

    rule = (
        f"the largest {device_word} count up to which more of them gave at least "
        f"{least} of the ideal gain"
    )
    if len(pays) == 1:
        rule = f"there is no other {device_word} count to choose"
    elif index == 0:
        rule = f"more of them give less than {least} of the ideal gain"

    return Choice(index=index, meets=bool(meets[index]), rule=rule)


def best_within(among: Allocations, limits: Constraints) -> Choice:
    """Choose the allocation that takes least and surely holds the limits.

    Where none does, the closest to them is chosen. What was measured goes before what
    takes clearly no more.
    """
    spent, resource = among.spent, limits.minimised(among.spent.known)
    is_sure = (among.probability >= limits.confidence) & among.is_eligible
    if is_sure.any():
        rule = (
            "of the allocations that meet the limits with a chance of at least "
            f"{percent(limits.confidence)}, the one that {resource.least}"
        )
        may_be, amount = is_sure, spent.of(resource)
        second = spent.time_s * spent.of(spent.cost)
        weighed = "has the least product of time and spending"
    else:
        which = "" if among.is_eligible.all() else " of those that may be chosen"
        rule = f"no allocation meets the limits; this one is the closest{which}"
        chances = counted_chances(among.probability)
        chances = np.where(among.is_eligible, chances, -1.0)
        may_be, amount = chances == chances.max(), limits.excess(spent)
        second, weighed = spent.of(resource), resource.least

    least = amount[may_be].min()
    is_tie = may_be & (amount <= least * (1 + CLEARLY))

    index = int(np.lexsort((second, ~among.is_measured, ~is_tie))[0])
    if amount[index] > least:
        rule += f"; within {percent(CLEARLY)} of it, what was measured comes first, "
        rule += f"then what {weighed}"

    return Choice(index=index, meets=bool(is_sure.any()), rule=rule)

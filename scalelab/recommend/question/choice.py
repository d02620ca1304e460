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


def choose(
    spent: Spending,
    probability: np.ndarray,
    eligible: np.ndarray,
    paying: np.ndarray,
    measured: np.ndarray,
    constraints: Constraints,
    device_word: str,
) -> Choice:
    """Choose among rows ordered by world size."""
    sure = (probability >= constraints.confidence) & eligible
    if not constraints.limited:
        index = int(np.flatnonzero(paying).max())
        least = percent(constraints.min_marginal_return)
        rule = (
            f"the largest {device_word} count up to which more of them gave at least "
            f"{least} of the ideal gain"
        )
        if len(paying) == 1:
            rule = f"there is no other {device_word} count to choose"
        elif index == 0:
            rule = f"more of them give less than {least} of the ideal gain"
        return Choice(index=index, meets=bool(sure[index]), rule=rule)
    resource = constraints.minimised(spent.known)
    amount, among = spent.of(resource), sure
    then = spent.time_s * spent.of(spent.cost)
    rule = (
        "of the allocations that meet the limits with a chance of at least "
        f"{percent(constraints.confidence)}, the one that {resource.least}"
    )
    if not sure.any():
        chances = np.where(eligible, counted_chances(probability), -1.0)
        amount, then = constraints.excess(spent), amount
        among = chances == chances.max()
        which = "" if eligible.all() else " of those that may be chosen"
        rule = f"no allocation meets the limits; this one is the closest{which}"
    best = amount[among].min()
    is_tie = among & (amount <= best * (1 + CLEARLY))
    index = int(np.lexsort((then, ~measured, ~is_tie))[0])
    if amount[index] > best:
        rule += f"; within {percent(CLEARLY)} of it, what was measured comes first, "
        weighed = "has the least product of time and spending"
        rule += f"then what {weighed if sure.any() else resource.least}"
    return Choice(index=index, meets=bool(sure.any()), rule=rule)

"""What allocations take of each resource, and which take less than others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from scalelab.inputs.numerals import Interval
from scalelab.kinds.resources import (
    DEVICE_HOURS,
    MONEY,
    RESOURCES,
    TIME,
    Resource,
    weighed_most,
)

# A smaller difference is a tie, which a measured row wins: of many predictions the best
# looks better than it is.
CLEARLY = 0.05
# To beat a row: the chance of taking clearly less of one, and at most more of the other
_SURELY, _NO_WORSE = 0.9, 0.01
# Chances below it are none: the likely time misses, and a wide interval brings a row no
# closer to the limits.
_NO_CHANCE = 0.5


@dataclass(frozen=True, slots=True)
class Spending:
    """How much allocations take of each resource."""

    # shape (..., n_rows): by the resource's name; those that could be computed
    amounts: Mapping[str, np.ndarray]
    # shape (n_rows,): of whose money the mean counts, not the median, as many runs pay
    # it; interruptions and past prices skew what one run pays
    is_mean: np.ndarray = field(default_factory=lambda: np.array(False))

    @classmethod
    def at(cls, amounts: Mapping[str, Interval | None]) -> Self:
        """Return what one allocation takes, by the middles of intervals."""
        known = {name: amount for name, amount in amounts.items() if amount is not None}
        return cls({name: np.array(amount.value) for name, amount in known.items()})

    @property
    def time_s(self) -> np.ndarray:
        """Time of the job, shape (..., n_rows)."""
        return self.of(TIME)

    @property
    def gpu_hours(self) -> np.ndarray:
        """Device-hours of the job, shape (..., n_rows)."""
        return self.of(DEVICE_HOURS)

    @property
    def known(self) -> list[Resource]:
        """The resources whose amounts could be computed."""
        return [RESOURCES[name] for name in self.amounts]

    @property
    def cost(self) -> Resource:
        """What is weighed against time: money, or else device-hours."""
        return weighed_most(self.known)

    def of(self, resource: Resource) -> np.ndarray:
        """Return the amounts of a known resource, shape (..., n_rows)."""
        return self.amounts[resource.name]

    def medians(self) -> Self:
        """Return the medians over draws, or means of money, shape (n_rows,)."""
        found = {n: np.median(amount, axis=0) for n, amount in self.amounts.items()}
        if MONEY in self.known:
            ended = np.ma.masked_invalid(self.of(MONEY))  # those that never reach it
            means = ended.mean(axis=0).filled(np.inf)
            found[MONEY.name] = np.where(self.is_mean, means, found[MONEY.name])
        return type(self)(found)

    def in_order(self, draws: np.ndarray) -> Self:
        """Return the draws in another order."""
        amounts = {n: amount[draws] for n, amount in self.amounts.items()}
        return type(self)(amounts, self.is_mean)

    def take(self, positions: np.ndarray) -> Self:
        """Return the amounts of some of the rows."""
        amounts = {n: amount[..., positions] for n, amount in self.amounts.items()}
        return type(self)(amounts, self.is_mean[positions])


def beating(spent: Spending, index: int, may_win: np.ndarray) -> np.ndarray:
    """Mark the rows, shape (n_rows,), that beat one of them, from draws of spending.

    Each takes at least 5% less time, or spends that much less, with a chance of 90%,
    and by the medians at most 1% more of the other.
    """
    draws = [spent.time_s, spent.of(spent.cost)]
    less = [(drawn < (1 - CLEARLY) * drawn[:, [index]]).mean(axis=0) for drawn in draws]
    medians = spent.medians()
    middles = [medians.time_s, medians.of(spent.cost)]
    holds = [middle <= (1 + _NO_WORSE) * middle[index] for middle in middles]
    is_less = [share >= _SURELY for share in less]
    return np.asarray(may_win & (is_less[0] & holds[1] | is_less[1] & holds[0]))


def unbeaten(spent: Spending, index: int, may_win: np.ndarray) -> int:
    """Return the row, of those that may win, that beats one and that none beats."""
    may_win, time_s = may_win.copy(), spent.medians().time_s
    while (beats := beating(spent, index, may_win)).any():
        may_win[index] = False
        index = int(np.where(beats, time_s, np.inf).argmin())
    return index


def counted_chances(probability: np.ndarray) -> np.ndarray:
    """Return chances of holding the limits as they count where none is high enough."""
    return np.where(probability < _NO_CHANCE, 0.0, np.round(probability, 2))


def pareto(time_s: np.ndarray, gpu_hours: np.ndarray) -> np.ndarray:
    """Mark the rows, shape (n_rows,), that no other beats in time and device-hours."""
    no_worse = (time_s <= time_s[:, None]) & (gpu_hours <= gpu_hours[:, None])
    better = (time_s < time_s[:, None]) | (gpu_hours < gpu_hours[:, None])
    return np.asarray(~(no_worse & better).any(axis=1))

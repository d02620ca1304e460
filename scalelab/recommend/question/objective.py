"""What the answer must respect, and which allocation respects it best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import device_time, duration, number, percent
from scalelab.inputs.target import Target
from scalelab.recommend.question.prices import Price

_TIE = 0.01  # of the cost: below it the faster allocation wins


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """Limits on the job, and how sure the answer must be.

    Parameters
    ----------
    max_time_s, max_gpu_hours, max_cost_usd
        Upper limits; None: no limit. A cost needs a price.
    price
        What devices cost; None: not known.
    target
        Replaces the job's own target.
    confidence
        Probability with which all limits must hold, in (0, 1).
    min_marginal_return
        Speed-up per device added below which a further doubling does not pay: 1 is a
        doubling that halves the time, 0 one that changes nothing.
    interval
        Probability mass of every interval, in (0, 1).
    """

    max_time_s: float | None = None
    max_gpu_hours: float | None = None
    max_cost_usd: float | None = None
    price: Price | None = None
    target: Target | None = None
    confidence: float = 0.9
    min_marginal_return: float = 0.7
    interval: float = 0.8

    def __post_init__(self) -> None:
        for name in ("max_time_s", "max_gpu_hours", "max_cost_usd"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"{name}={value} must be a positive number.")
        for name in ("confidence", "min_marginal_return", "interval"):
            if not 0 < getattr(self, name) < 1:
                raise SpecError(
                    f"{name}={getattr(self, name)} must lie between 0 and 1."
                )

    @property
    def any_limit(self) -> bool:
        """A time, cost or device-hour limit is set."""
        limits = (self.max_time_s, self.max_gpu_hours, self.max_cost_usd)
        return any(limit is not None for limit in limits)

    def in_words(self, device_hour_word: str) -> tuple[str, ...]:
        """Return the limits on time, device-hours and money, e.g. ``< 4 h``."""
        words = []
        if self.max_time_s is not None:
            words.append(f"< {duration(self.max_time_s)}")
        if self.max_gpu_hours is not None:
            words.append(f"< {device_time(self.max_gpu_hours, device_hour_word)}")
        if self.max_cost_usd is not None:
            words.append(f"< {number(self.max_cost_usd)} usd")
        return tuple(words)

    def spending(
        self, time_s: np.ndarray, world_size: np.ndarray, num_nodes: np.ndarray
    ) -> Spending:
        """Return what allocations take.

        Parameters
        ----------
        time_s : ndarray, shape (..., n_rows)
        world_size, num_nodes : ndarray, shape (n_rows,)

        Raises
        ------
        SpecError
            There is a limit on money and no price.
        """
        if self.max_cost_usd is not None and self.price is None:
            raise SpecError(
                f"max_cost_usd={self.max_cost_usd:g} needs a price. Give "
                "price_per_gpu_hour_usd (--price on the command line), or write "
                "price_per_gpu_hour or price_per_node_hour in the site."
            )
        hours, price = time_s / 3600, self.price
        return Spending(
            time_s=time_s,
            gpu_hours=hours * world_size,
            cost_usd=hours * price.per_hour(world_size, num_nodes) if price else None,
        )

    def held(self, spent: Spending) -> np.ndarray:
        """Tell, draw by draw, whether every limit holds; shape of the spending."""
        held = np.ones(spent.time_s.shape, dtype=bool)
        for limit, values in self._limited(spent):
            held &= values <= limit
        return held

    def excess(self, spent: Spending) -> np.ndarray:
        """Return the largest ratio of a value to its limit."""
        ratio = np.zeros_like(spent.time_s)
        for limit, values in self._limited(spent):
            ratio = np.maximum(ratio, values / limit)
        return ratio

    def _limited(self, spent: Spending) -> list[tuple[float, np.ndarray]]:
        pairs = (
            (self.max_time_s, spent.time_s),
            (self.max_gpu_hours, spent.gpu_hours),
            (self.max_cost_usd, spent.cost_usd),
        )
        return [
            (limit, values)
            for limit, values in pairs
            if limit is not None and values is not None
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """What each row takes.

    Parameters
    ----------
    time_s, gpu_hours : ndarray, shape (..., n_rows)
    cost_usd : ndarray, shape (..., n_rows), or None
        None without a price.
    """

    time_s: np.ndarray
    gpu_hours: np.ndarray
    cost_usd: np.ndarray | None = None

    @property
    def cost(self) -> np.ndarray:
        """Money where there is a price, else device-hours."""
        return self.gpu_hours if self.cost_usd is None else self.cost_usd

    @property
    def unit(self) -> str:
        """What :attr:`cost` counts."""
        return "device-hours" if self.cost_usd is None else "money"

    def medians(self) -> Spending:
        """Return the medians over draws, shape (n_rows,)."""
        usd = self.cost_usd
        return Spending(
            time_s=np.median(self.time_s, axis=0),
            gpu_hours=np.median(self.gpu_hours, axis=0),
            cost_usd=None if usd is None else np.median(usd, axis=0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Index of the chosen row, whether it meets the limits, and the rule in words."""

    index: int
    meets: bool
    rule: str


def choose(
    spent: Spending,
    probability: np.ndarray,
    paying: np.ndarray,
    constraints: Constraints,
) -> Choice:
    """Choose among rows ordered by world size.

    Parameters
    ----------
    spent
        Medians.
    probability : ndarray, shape (n_rows,)
        Of holding every limit.
    paying : ndarray of bool, shape (n_rows,)
        Rows up to the point where returns diminish; used without limits.
    constraints
        The limits.
    """
    if not constraints.any_limit:
        index = int(np.flatnonzero(paying).max())
        least = percent(constraints.min_marginal_return)
        rule = (
            f"the largest allocation up to which every step returned at least {least} "
            "of what its devices could"
        )
        meets = bool(probability[index] >= constraints.confidence)
        return Choice(index=index, meets=meets, rule=rule)
    sure = probability >= constraints.confidence
    if not sure.any():
        excess = constraints.excess(spent)
        closest = np.lexsort((excess, -np.round(probability, 2)))
        return Choice(index=int(closest[0]), meets=False, rule="the closest there is")
    sure_of = percent(constraints.confidence)
    if constraints.max_time_s is not None:
        allowed = np.where(sure, spent.cost, np.inf)
        near = allowed <= allowed.min() * (1 + _TIE)
        index = int(np.where(near, spent.time_s, np.inf).argmin())
        least = f"the {'fewest' if spent.cost_usd is None else 'least'} {spent.unit}"
        rule = f"{least} that holds every limit with {sure_of}"
    else:
        index = int(np.where(sure, spent.time_s, np.inf).argmin())
        rule = f"the fastest that holds every limit with {sure_of}"
    return Choice(index=index, meets=True, rule=rule)


def pareto(time_s: np.ndarray, gpu_hours: np.ndarray) -> np.ndarray:
    """Mark the rows that no other row beats in both time and device-hours.

    Parameters
    ----------
    time_s, gpu_hours : ndarray, shape (n_rows,)

    Returns
    -------
    ndarray of bool, shape (n_rows,)
    """
    no_worse = (time_s <= time_s[:, None]) & (gpu_hours <= gpu_hours[:, None])
    better = (time_s < time_s[:, None]) | (gpu_hours < gpu_hours[:, None])
    return np.asarray(~(no_worse & better).any(axis=1))

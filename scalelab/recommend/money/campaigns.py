"""Campaigns: many runs on a pool of devices, and how many of them side by side.

Runs are moldable jobs: each is given a number of devices, which it keeps. Plans are
made of shelves, runs on equally many devices that start together; a dynamic programme
finds the best of them for times that are known. Then, with times that scatter, each run
starts as soon as enough devices are free.

References
----------
Turek, Wolf and Yu 1992, *Approximate algorithms for scheduling parallelizable tasks*,
SPAA, doi 10.1145/140901.141909 (shelves, and the bound by area and by the longest run).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np

from scalelab.laws.interval import SEED

_WEIGHTS = np.linspace(0.0, 1.0, 11)  # of time against device time


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Campaign:
    """Equal runs on a pool of devices.

    Parameters
    ----------
    num_runs, pool
        The runs, and the devices that there are for all of them.
    sizes : ndarray, shape (n_sizes,)
        Numbers of devices that a run may have, increasing, at most the pool.
    time_s : ndarray, shape (n_draws, n_sizes)
        Expected time of a run, as draws of what is known of it: all runs err together.
    scatter : ndarray, shape (n_sizes,)
        Standard deviation of the logarithm of the time from run to run.
    """

    num_runs: int
    pool: int
    sizes: np.ndarray
    time_s: np.ndarray
    scatter: np.ndarray

    def side_by_side(self, size: int) -> int:
        """Return how many runs fit on the pool at once."""
        return min(self.pool // size, self.num_runs)

    def plans(self) -> Iterator[Mapping[int, int]]:
        """Yield plans, numbers of runs by their devices: soonest first, then cheaper.

        Each is the best of shelves at another weight of time against device time.
        """
        seen = set()
        for weight in _WEIGHTS:
            plan = self._shelves(float(weight))
            if (key := tuple(sorted(plan.items()))) not in seen:
                seen.add(key)
                yield plan

    def lower_bound_s(self) -> float:
        """Return a time that no plan can beat, by medians of the times of runs.

        All runs together take at least their least device time, and one its least time.
        """
        time_s = np.median(self.time_s, axis=0)
        area_s = self.num_runs * float((self.sizes * time_s).min()) / self.pool
        return max(area_s, float(time_s.min()))

    def makespan_s(self, plan: Mapping[int, int]) -> np.ndarray:
        """Return when the last run of a plan ends, shape (n_draws,).

        It is simulated: the longest runs first, each as soon as devices are free.
        """
        rng, num_draws = np.random.default_rng(SEED + 17), len(self.time_s)
        grain = gcd(*plan)  # devices that are always held together
        free_s = np.zeros((num_draws, self.pool // grain))

        medians = dict(zip(self.sizes, np.median(self.time_s, axis=0), strict=True))
        for size in sorted(plan, key=lambda size: -medians[size]):
            place, width = int(np.searchsorted(self.sizes, size)), size // grain
            for _ in range(plan[size]):
                luck = np.exp(self.scatter[place] * rng.standard_normal(num_draws))
                free_s.sort(axis=1)
                ends_s = free_s[:, width - 1] + self.time_s[:, place] * luck
                free_s[:, :width] = ends_s[:, None]

        return np.asarray(free_s.max(axis=1))

    def _shelves(self, weight: float) -> dict[int, int]:
        """Return the numbers of runs by devices of the best shelves.

        Best is what takes least time, weighed against device time over the pool.
        """
        time_s = np.median(self.time_s, axis=0)
        best, last = [0.0], [(0, 0)]
        for num_left in range(1, self.num_runs + 1):
            options = []
            for size, seconds in zip(self.sizes.tolist(), time_s, strict=True):
                count = min(self.pool // size, num_left)
                share = count * size / self.pool
                cost = seconds * ((1 - weight) + weight * share)
                options.append((best[num_left - count] + cost, (size, count)))
            value, shelf = min(options)
            best.append(value)
            last.append(shelf)

        plan, num_left = Counter[int](), self.num_runs
        while num_left:
            size, count = last[num_left]
            plan[size] += count
            num_left -= count
        return dict(plan)

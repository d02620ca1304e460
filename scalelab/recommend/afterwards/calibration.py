"""How well answers held for the jobs that were followed, and what that makes of others.

References
----------
Romano, Patterson and Candes 2019, *Conformalized quantile regression* (an interval
that is widened, or narrowed, at both ends by a quantile of how far values were outside
of their own).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from scalelab.laws.interval import central
from scalelab.recommend.answer.facts import Fact
from scalelab.records.afterwards.followed import STEP_TIME, KeptJob, KeptValue

# From so many jobs of so many configurations on, intervals may become narrower
_ENOUGH_JOBS, _ENOUGH_CONFIGURATIONS = 10, 3
_NARROWEST = 0.5  # share that is left of an interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """How often the intervals of step times held for jobs on a kind of device.

    Parameters
    ----------
    num_jobs, num_held
        Jobs that were as the answer had them; those within their intervals.
    num_configurations
        Of them all.
    widened_by
        What is to be added to the logarithm of the upper end of a law's interval, and
        taken from that of the lower end; negative: intervals become narrower.
    """

    num_jobs: int = 0
    num_held: int = 0
    num_configurations: int = 0
    widened_by: float = 0.0

    @classmethod
    def of(cls, jobs: Sequence[KeptJob], mass: float) -> Self:
        """Learn from jobs: a deviation widens at once, and many narrow.

        ``mass`` is that of the interval that is to hold.
        """
        known = [job for job in jobs if job.was_as_asked]
        if not known:
            return cls()

        outside = sorted(_outside(j.values[STEP_TIME]) + j.widened_by for j in known)
        rank = min(math.ceil(mass * (len(known) + 1)), len(known))
        widened_by = outside[rank - 1]

        configurations = {(job.workload, job.configuration) for job in known}
        may_narrow = (
            len(known) >= _ENOUGH_JOBS and len(configurations) >= _ENOUGH_CONFIGURATIONS
        )
        return cls(
            num_jobs=len(known),
            num_held=sum(_outside(job.values[STEP_TIME]) <= 0 for job in known),
            num_configurations=len(configurations),
            widened_by=widened_by if may_narrow else max(widened_by, 0.0),
        )

    def applied(self, draws: np.ndarray, mass: float) -> np.ndarray:
        """Return draws of times, (n_draws, n), whose intervals are widened.

        Draws keep their order and their median.
        """
        if not self.widened_by:
            return draws
        median = np.median(draws, axis=0)
        apart = np.log(draws / median)
        lo, hi = central(apart, mass)
        half = np.maximum((hi - lo) / 2, np.finfo(float).tiny)
        factor = np.maximum(1 + self.widened_by / half, _NARROWEST)
        return np.asarray(median * np.exp(apart * factor))

    def notes(self, mass: float) -> Iterator[Fact]:
        """Note how often answers held, where jobs were followed."""
        if self.num_jobs:
            yield Fact.of(
                "answers_held",
                num_jobs=self.num_jobs,
                num_held=self.num_held,
                num_configurations=self.num_configurations,
                mass=mass,
                widened_by=self.widened_by,
            )


def _outside(value: KeptValue) -> float:
    """Return how far a true value is outside of its interval, in logarithms.

    Inside it is the distance to the nearer end, and negative.
    """
    above = -math.inf if value.hi is None else math.log(value.true) - math.log(value.hi)
    return max(above, math.log(value.lo) - math.log(value.true))

"""The measured points of one curve: medians over repeats, and their spread.

Repeats of a configuration scatter with a variance of its own, and the variances of a
curve follow a scaled inverse chi-square. So a further run deviates like Student's t: at
a repeated configuration by what its own runs and those of the whole curve say, anywhere
else by what the curve says.

References
----------
Smyth 2004, *Linear models and empirical Bayes methods for assessing differential
expression in microarray experiments*, section 3 (moderated variances).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, polygamma

from scalelab.laws.rows import CONFIGURATION
from scalelab.laws.step_time.physics import Configurations

# the prior of the spread between repeats: log-normal, and how alike its degrees of
# freedom make the configurations of a curve
_USUAL_SPREAD, _SPREAD_OF_SPREADS = 0.02, 1.0
_SPREADS = np.geomspace(0.003, 1.0, 48)
_FREEDOMS = np.array([2.0, 3.0, 5.0, 10.0, 30.0])
_LEAST_HALF, _MOST_HALF = 0.1, 1e4  # of degrees of freedom, between which they lie


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """How further runs deviate from their expected log time: by Student's t."""

    # Scale and degrees of freedom at a configuration without repeats; the less the
    # repeats of a curve tell, the fewer degrees
    spread: float
    freedom: float
    spreads: np.ndarray
    freedoms: np.ndarray

    @classmethod
    def of(cls, repeats: Sequence[np.ndarray]) -> Self:
        """Estimate the scatter from the log times of each point's runs."""
        degrees = np.array([len(values) - 1.0 for values in repeats])
        squares = np.array([len(values) * values.var() for values in repeats])
        spread, freedom = _moderation(degrees, squares)
        total = freedom * spread**2 + squares

        return cls(
            spread=spread,
            freedom=freedom,
            spreads=np.sqrt(total / (freedom + degrees)),
            freedoms=freedom + degrees,
        )

    @property
    def typical(self) -> np.ndarray:
        """Geometric mean of what each standard deviation may be, shape (n_points,)."""
        return np.asarray(self.spreads * np.exp(_log_excess(self.freedoms)))

    def take(self, positions: np.ndarray) -> Self:
        """Return the scatter of some of the points."""
        return replace(
            self,
            spreads=self.spreads[positions],
            freedoms=self.freedoms[positions],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Distinct configurations of one curve, sorted, in the curve's own units."""

    # Configurations; samples in units of ``batch_unit``
    at: Configurations
    log_time: np.ndarray
    num_repeats: np.ndarray
    # Mean variance of a log step time by the interval of its run; 0: not known
    own_variance: np.ndarray
    scatter: Scatter
    # Typical time of a pass (s) and samples per device of the curve. Laws are fitted in
    # these units, so that a change of the user's units changes no prediction.
    time_unit_s: float
    batch_unit: float
    gradient_bytes: float = float("nan")

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Reduce the rows of one curve to its points."""
        own_variance = frame.get("own_error", 0.0) ** 2
        logs = frame.assign(log_time=np.log(frame["step_time_s"]), own=own_variance)
        groups = logs.groupby(list(CONFIGURATION), sort=True)
        points = groups["log_time"].agg(["median", "size"]).reset_index()
        micro = points["median"] - np.log(points["gradient_accumulation_steps"])
        time_unit_s = float(np.exp(micro.median()))
        samples = Configurations.of(points).samples
        batch_unit = float(np.exp(np.median(np.log(samples))))
        sizes = frame.get("gradient_bytes", pd.Series(dtype=float)).dropna().unique()

        return cls(
            at=Configurations.of(points, batch_unit),
            log_time=points["median"].to_numpy(float) - np.log(time_unit_s),
            num_repeats=points["size"].to_numpy(float),
            own_variance=groups["own"].mean().to_numpy(float),
            scatter=Scatter.of([values.to_numpy() for _, values in groups["log_time"]]),
            time_unit_s=time_unit_s,
            batch_unit=batch_unit,
            gradient_bytes=float(sizes[0]) if len(sizes) == 1 else float("nan"),
        )

    @property
    def log_rate(self) -> float:
        """Log of the bytes exchanged in the time of a typical pass; NaN if unknown."""
        return float(np.log(self.gradient_bytes / self.time_unit_s))

    @property
    def local_batches(self) -> list[float]:
        """The samples that one device computes in a pass, each once, increasing."""
        return sorted(
            {round(float(count) * self.batch_unit, 6) for count in self.at.samples}
        )

    def is_alone(self, place: int) -> bool:
        """Tell whether no other point is on several nodes, or on several devices."""
        return any(
            counts[place] > 1 and np.count_nonzero(counts > 1) == 1
            for counts in (self.at.num_nodes, self.at.world_size)
        )

    def take(self, positions: np.ndarray) -> Self:
        """Return some of the points, in the same units."""
        return replace(
            self,
            at=self.at.take(positions),
            log_time=self.log_time[positions],
            num_repeats=self.num_repeats[positions],
            own_variance=self.own_variance[positions],
            scatter=self.scatter.take(positions),
        )

    def fewer(self, most: int) -> Self:
        """Return at most so many points, drawn at random.

        The smallest and the largest batch of each allocation come first: no others
        surround them.
        """
        if len(self) <= most:
            return self
        places = self.at.world_size + 1j * self.at.num_nodes
        is_end = np.zeros(len(self), dtype=bool)
        for place in np.unique(places):
            inside = np.flatnonzero(places == place)
            is_end[inside[self.at.samples[inside].argsort()[[0, -1]]]] = True

        drawn = np.random.default_rng(0).permutation(len(self))
        drawn = drawn[np.argsort(~is_end[drawn], kind="stable")]
        return self.take(np.sort(drawn[:most]))

    def deviating(self, frame: pd.DataFrame, deviation: np.ndarray) -> Self:
        """Return the points with runs of some that deviate by at least so much."""
        spreads, freedoms = self.scatter.spreads.copy(), self.scatter.freedoms.copy()
        found = self._positions(frame)
        is_more = deviation > spreads[found]
        spreads[found[is_more]] = deviation[is_more]
        freedoms[found[is_more]] = _FREEDOMS[-1]
        return replace(
            self, scatter=replace(self.scatter, spreads=spreads, freedoms=freedoms)
        )

    def repeats_of(self, frame: pd.DataFrame) -> np.ndarray:
        """Return how many runs of each configuration were measured, shape (n,)."""
        found = self._positions(frame)
        return np.where(found < 0, 0, self.num_repeats[found]).astype(int)

    def further_run(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return scale and degrees of freedom by which a run of each deviates."""
        found, scatter = self._positions(frame), self.scatter
        return (
            np.where(found < 0, scatter.spread, scatter.spreads[found]),
            np.where(found < 0, scatter.freedom, scatter.freedoms[found]),
        )

    def _positions(self, frame: pd.DataFrame) -> np.ndarray:
        # -1 where a configuration was not measured
        place = {label: i for i, label in enumerate(self.at.labels())}
        asked = Configurations.of(frame, self.batch_unit).labels()
        return np.array([place.get(label, -1) for label in asked], dtype=int)

    def __len__(self) -> int:
        return len(self.log_time)


def spread_out(num_points: int, most: int) -> np.ndarray:
    """Return sorted positions of at most ``most`` points, drawn at random."""
    return np.sort(np.random.default_rng(0).permutation(num_points)[:most])


def _moderation(degrees: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    """Return the scale of a curve's scatter, and the degrees of freedom it is worth.

    They give the log of a standard deviation its posterior mean and variance, over a
    grid and given each point's sum of squares.
    """
    several = degrees > 0
    degrees, squares = degrees[several, None, None], squares[several, None, None]
    usual, total = _FREEDOMS[:, None] * _SPREADS**2, degrees + _FREEDOMS[:, None]
    logs = gammaln(total / 2) - gammaln(_FREEDOMS / 2)[:, None]
    logs = logs - degrees / 2 * np.log(usual) - total / 2 * np.log1p(squares / usual)
    prior = np.log(_SPREADS / _USUAL_SPREAD) / _SPREAD_OF_SPREADS
    logs = logs.sum(axis=0) - prior**2 / 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    typical = np.log(_SPREADS) + _log_excess(_FREEDOMS)[:, None]
    mean = float((weights * typical).sum())
    variance = float((weights * (typical - mean) ** 2).sum())

    variance += float(weights.sum(axis=1) @ polygamma(1, _FREEDOMS / 2)) / 4

    def excess(half: float) -> float:
        return float(polygamma(1, half)) / 4 - variance

    # of degrees of freedom that give a log standard deviation this variance
    freedom = 2 * float(brentq(excess, _LEAST_HALF, _MOST_HALF))
    return float(np.exp(mean - _log_excess(freedom))), freedom


def _log_excess(freedom: np.ndarray | float) -> np.ndarray:
    """Return the mean log of a standard deviation over the scale of its Student's t."""
    half = np.asarray(freedom) / 2
    return np.asarray((np.log(half) - digamma(half)) / 2)

"""Mixtures of normal distributions of log time, and their quantiles.

The mixture is of expected log times. A further run scatters around its expectation like
Student's t, which is added as a normal part: at each quantile, with the variance that
gives the t's own quantile.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

# below this share of the variance between the parts, a mixture counts as one normal
_ONE_NORMAL = 0.05
_NUM_STEPS = 30
_FAR, _ENOUGH = 6.0, 1e-3  # deviations; change of a log time
_NUM_KNOTS = 33  # at which the quantiles of ranked draws are solved for
_NEAR_MEDIAN = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """A mixture of normal parts for the log time of each of n configurations."""

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    # shape (n,): scale and degrees of freedom of the t by which a further run deviates;
    # a scale of 0: the mixture is of expected times
    scale: np.ndarray | float = 0.0
    freedom: np.ndarray | float = np.inf

    @property
    def mean(self) -> np.ndarray:
        """Mean log time, shape (n,)."""
        return np.asarray((self.weights * self.means).sum(axis=0))

    @property
    def variance(self) -> np.ndarray:
        """Variance of the log time, shape (n,)."""
        within = (self.weights * self.variances).sum(axis=0)
        return np.asarray(within + self._between())

    def moved(self, offset: np.ndarray | float, variance: np.ndarray | float) -> Self:
        """Return the mixture with an offset (n,) and a variance added to each part."""
        return replace(
            self, means=self.means + offset, variances=self.variances + variance
        )

    def with_tail(
        self,
        share: np.ndarray,
        offset: np.ndarray | float,
        variance: np.ndarray | float,
    ) -> Self:
        """Return the mixture in which some of it is slower, with the same median.

        The share (n,) is slower by a normal offset with this variance, in logs.
        """
        weights = np.broadcast_to(self.weights, self.means.shape)
        tailed = replace(
            self,
            weights=np.vstack([(1 - share) * weights, share]),
            means=np.vstack([self.means, self.mean + offset]),
            variances=np.vstack([self.variances, self.variance + variance]),
        )
        return tailed.moved(self.quantile(0.5) - tailed.quantile(0.5), 0.0)

    def of_one_run(self, scale: np.ndarray, freedom: np.ndarray) -> Self:
        """Return the mixture for one further run, which scatters like Student's t."""
        return replace(self, scale=scale, freedom=freedom)

    def quantile(self, level: np.ndarray | float) -> np.ndarray:
        """Return the log times that are not exceeded with probability ``level``."""
        parts, level = self, np.broadcast_to(level, self.means.shape[1:])
        if np.any(self.scale):  # at this level a normal part takes the place of the t
            tail = np.maximum(np.abs(level - 0.5), _NEAR_MEDIAN) + 0.5
            factor = stdtrit(self.freedom, tail) / ndtri(tail)
            variances = self.variances + (self.scale * factor) ** 2
            parts = replace(self, variances=variances, scale=0.0, freedom=np.inf)

        variance = parts.variance
        answer = parts.mean + ndtri(level) * np.sqrt(variance)

        mixed = np.flatnonzero(parts._between() > _ONE_NORMAL * variance)
        if len(mixed):
            answer[mixed] = parts._take(mixed)._solve(level[mixed], answer[mixed])

        return np.asarray(answer)

    def ranked(self, draws: np.ndarray) -> np.ndarray:
        """Return the quantiles of the mixture in the order of some draws.

        So the draws of each column have exactly its distribution, whatever else was
        drawn beside it, and columns that vary together still do.
        """
        levels = ndtri((np.arange(len(draws)) + 0.5) / len(draws))
        knots = np.linspace(levels[0], levels[-1], _NUM_KNOTS)
        count = self.means.shape[1]
        at_each = self._take(np.tile(np.arange(count), _NUM_KNOTS))
        values = at_each.quantile(ndtr(knots).repeat(count)).reshape(-1, count)
        ranks = draws.argsort(axis=0, kind="stable").argsort(axis=0)
        columns = [np.interp(levels, knots, column) for column in values.T]
        return np.take_along_axis(np.column_stack(columns), ranks, axis=0)

    def _between(self) -> np.ndarray:
        offsets = self.means - self.mean
        return np.asarray((self.weights * offsets**2).sum(axis=0))

    def _take(self, chosen: np.ndarray) -> Self:
        one_for_all = self.weights.shape[1] == 1
        columns = self.means.shape[1:]
        return replace(
            self,
            weights=self.weights if one_for_all else self.weights[:, chosen],
            means=self.means[:, chosen],
            variances=self.variances[:, chosen],
            scale=np.broadcast_to(self.scale, columns)[chosen],
            freedom=np.broadcast_to(self.freedom, columns)[chosen],
        )

    def _solve(self, level: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return a quantile by Newton's steps inside a shrinking bracket.

        A column is dropped once it has converged, so that slow columns cost little.
        """
        deviations = np.sqrt(self.variances)
        low = (self.means - _FAR * deviations).min(axis=0)
        high = (self.means + _FAR * deviations).max(axis=0)
        found = np.clip(start, low, high)

        moving, parts = np.arange(len(found)), self
        for _ in range(_NUM_STEPS):
            at = found[moving]
            precisions = 1 / np.sqrt(parts.variances)
            scores = (at - parts.means) * precisions
            excess = (parts.weights * ndtr(scores)).sum(axis=0) - level[moving]
            heights = parts.weights * np.exp(-(scores**2) / 2) * precisions
            density = heights.sum(axis=0) / np.sqrt(2 * np.pi)
            low[moving] = np.where(excess < 0, at, low[moving])
            high[moving] = np.where(excess < 0, high[moving], at)
            tried = at - excess / np.maximum(density, 1e-300)
            inside = (tried > low[moving]) & (tried < high[moving])
            found[moving] = np.where(inside, tried, (low[moving] + high[moving]) / 2)

            restless = np.flatnonzero(np.abs(found[moving] - at) >= _ENOUGH)
            if not len(restless):
                break

            moving, parts = moving[restless], parts._take(restless)

        return np.asarray(found)

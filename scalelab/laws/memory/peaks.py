"""The peak memory of a device, fitted to measured peaks.

The fit is linear and robust; errors are relative, because logs are fitted.

References
----------
Lange et al. 1989, *Robust statistical modeling using the t distribution*. Rousseeuw and
Leroy 1987, *Robust regression and outlier detection*, chapter 5 (the deviation of few
points).
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import nnls

_MARGIN = 2.0  # standard errors by which a planned peak exceeds the prediction
_FREEDOM = 4.0  # degrees of freedom of Student's t, until outliers are known
_FAR = 4.0  # standard deviations beyond which a peak is an outlier
_NORMAL_MEDIAN = 1.48  # standard deviations per median absolute deviation
_MAJORITY = 3  # peaks beyond the number of terms; with fewer there is no outlier
_FEW = 12  # peaks beyond the number of terms; with more, each has little influence
_USUAL_SCATTER = 0.03  # where there are no more peaks than terms
_ROUNDS = 30
_LEAST_SCATTER = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """The fitted peak of one device."""

    # shape (3,): bytes replicated, bytes sharded and bytes per sample
    terms: np.ndarray
    covariance: np.ndarray
    scatter: float
    # With fewer shards no batch is planned. Where all peaks had the same number of
    # shards, sharded state cannot be distinguished from replicated state, and fewer
    # ranks would each hold more of it.
    least_shards: float
    # Smaller batches count as this one. Where all peaks had the same batch, memory that
    # does not grow with the batch cannot be distinguished from memory that does.
    least_batch: float

    @classmethod
    def fit(cls, batch: np.ndarray, shards: np.ndarray, peak: np.ndarray) -> Self:
        """Fit the peaks of distinct batches and shards, shape (n_peaks,)."""
        features = _features(batch, shards)
        # with one number of shards, sharded memory counts as replicated; with one
        # batch, replicated memory counts as memory per sample
        tells_shards, tells_batch = (len(np.unique(x)) > 1 for x in (shards, batch))
        used = np.array([tells_batch, tells_shards, True])
        everyone, middle = np.ones(len(peak)), np.full(len(peak), np.median(peak))

        # the first start suits an outlier that is too high, the second one that is too
        # low; among few peaks an outlier has much influence, so each is also left out
        starts = [(peak, everyone), (middle, everyone)]
        if _MAJORITY <= len(peak) - used.sum() <= _FEW:
            starts += [(peak, kept) for kept in 1 - np.eye(len(peak))]

        fits = [_settled(features, peak, used, *start) for start in starts]
        terms, trust = min(
            fits, key=lambda fit: np.median(np.abs(_errors(features, peak, fit[0])))
        )
        errors = _errors(features, peak, terms)

        freedom, scatter = trust.sum() - used.sum(), _USUAL_SCATTER
        if freedom > 0:
            scatter = float(np.sqrt((trust * errors**2).sum() / freedom))

        active = terms > 0
        relative = features[:, active] / (features @ terms)[:, None]
        covariance = np.zeros((3, 3))
        covariance[np.ix_(active, active)] = scatter**2 * np.linalg.pinv(
            (relative * trust[:, None]).T @ relative
        )

        return cls(
            terms=terms,
            covariance=covariance,
            scatter=scatter,
            least_shards=1.0 if tells_shards else float(shards[0]),
            least_batch=0.0 if tells_batch else float(batch[0]),
        )

    def at(self, batch: float, shards: float) -> float:
        """Return the fitted peak in bytes."""
        return float((self._feature(batch, shards) @ self.terms).item())

    def planned(self, batch: float, shards: float) -> float:
        """Return a peak in bytes that a further run is unlikely to exceed."""
        feature, peak = self._feature(batch, shards), self.at(batch, shards)
        variance = feature @ self.covariance @ feature + (self.scatter * peak) ** 2
        return peak + _MARGIN * float(np.sqrt(variance))

    def largest_batch(self, shards: float, limit_bytes: float) -> int:
        """Return the largest batch with a planned peak within a limit; 0 if none."""
        room, slope = limit_bytes - self.at(0, shards), self.terms[2]
        if room <= 0 or slope <= 0 or shards < self.least_shards:
            return 0
        batches = range(int(self.least_batch + room / slope) + 2)
        met = bisect_right(batches, limit_bytes, key=lambda b: self.planned(b, shards))
        return max(met - 1, 0)

    def _feature(self, batch: float, shards: float) -> np.ndarray:
        return np.asarray(_features(max(batch, self.least_batch), shards)[0])


def _features(batch: np.ndarray | float, shards: np.ndarray | float) -> np.ndarray:
    batch, shards = np.atleast_1d(batch), np.atleast_1d(shards)
    return np.column_stack([np.ones(len(batch)), 1 / shards, batch])


def _errors(features: np.ndarray, peak: np.ndarray, terms: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(peak) - np.log(features @ terms))


def _settled(
    features: np.ndarray,
    peak: np.ndarray,
    used: np.ndarray,
    around: np.ndarray,
    trust: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit terms by iteratively reweighted least squares of log errors.

    Returns
    -------
    terms : ndarray, shape (3,)
    trust : ndarray, shape (n_peaks,)
        The final weights; 0 for an outlier.
    """
    terms, freedom = np.zeros(3), len(peak) - used.sum()
    target = peak / around
    for step in range(_ROUNDS):
        weight = np.sqrt(trust)
        rows = features[:, used] * (weight / around)[:, None]
        before = terms.copy()
        terms[used] = nnls(rows, weight * target)[0]

        if step and (features @ terms < around / 2).any():
            terms = (before + terms) / 2  # too far for a linear approximation

        around = features @ terms
        errors = np.log(peak / around)
        target = 1 + errors

        if freedom >= _MAJORITY:
            spread = _NORMAL_MEDIAN * (1 + 5 / freedom) * np.median(np.abs(errors))
            scores = np.abs(errors) / max(spread, _LEAST_SCATTER)
            # first reduce the weight of outliers, then leave them out
            soft = (_FREEDOM + 1) / (_FREEDOM + scores**2)
            trust = soft if step < _ROUNDS // 2 else (scores < _FAR).astype(float)

    return terms, trust

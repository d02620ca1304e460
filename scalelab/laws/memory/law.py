"""The memory law: peak memory, and the largest local batch that fits on a device.

Activations grow linearly with the local batch; weights, gradients and optimiser state
do not, and where they are sharded over ``k`` ranks each holds its share::

    peak = replicated + sharded / k + per_sample * local batch

with no negative term, see :class:`Peaks`. More ranks never need
more of one device: a batch that ran on fewer ranks also runs on more, and a batch that
failed on more ranks also fails on fewer.

References
----------
Rajbhandari et al. 2020, *ZeRO*, section 3 (what memory holds, and that only sharding
makes it depend on the number of ranks).
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from scalelab.errors import FitError, SpecError
from scalelab.inputs.guessed import Guided
from scalelab.laws.asked import asked_configurations, law_in_words
from scalelab.laws.rows import (
    CurveKey,
    agreeing,
    curve_columns,
    curve_label,
    group_rows,
    numbers,
    positive,
    positive_if_given,
    strategies,
)

_ANSWERS = ("completed", "target_not_reached", "pruned", "out_of_memory")
_SAFETY = 0.95  # of a device is planned with: allocators fragment memory
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
    """The peak memory of a device, fitted to measured peaks.

    The fit is linear and robust. Errors are relative: logarithms are fitted.

    References
    ----------
    Lange et al. 1989, *Robust statistical modeling using the t distribution*.
    Rousseeuw and Leroy 1987, *Robust regression and outlier detection*, chapter 5 (the
    deviation of few points).
    """

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCurve:
    """The memory law of one workload on one device at one precision."""

    batches: np.ndarray
    shards: np.ndarray
    failed: np.ndarray
    # The fitted peak memory; None with fewer than two different measured peaks
    peaks: Peaks | None

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> Self:
        """Fit the rows of one curve."""
        measured = frame[~frame["failed"]].dropna(subset=["peak_bytes"])
        highest = (
            measured.groupby(["batch", "shards"])["peak_bytes"].max().reset_index()
        )
        return cls(
            batches=frame["batch"].to_numpy(float),
            shards=frame["shards"].to_numpy(float),
            failed=frame["failed"].to_numpy(bool),
            peaks=Peaks.fit(*highest.to_numpy(float).T) if len(highest) > 1 else None,
        )

    def largest_fitting(self, shards: float) -> int:
        """Return the largest batch that ran on as many ranks or fewer; 0: none."""
        ran = self.batches[~self.failed & ~(self.shards > shards)]
        return int(ran.max()) if len(ran) else 0

    def smallest_failing(self, shards: float) -> int | None:
        """Return the smallest batch that ran out of memory there or on more ranks."""
        failing = self.batches[self.failed & ~(self.shards < shards)]
        return int(failing.min()) if len(failing) else None

    def peak_bytes(self, batch: float, shards: float) -> float:
        """Return the fitted peak of one device in bytes; NaN if none was fitted."""
        return float("nan") if self.peaks is None else self.peaks.at(batch, shards)

    def largest_local_batch(self, shards: float, capacity_bytes: float | None) -> int:
        """Return the largest local batch that is expected to fit, below any failure."""
        answer = self.largest_fitting(shards)
        if capacity_bytes is not None and self.peaks is not None:
            answer = max(
                answer, self.peaks.largest_batch(shards, _SAFETY * capacity_bytes)
            )
        failing = self.smallest_failing(shards)
        return answer if failing is None else min(answer, failing - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLaw(Guided):
    """The memory law: which local batches fit, by workload, device and precision."""

    curves: Mapping[CurveKey, MemoryCurve]

    @classmethod
    def fit(cls, observations: pd.DataFrame) -> Self:
        """Fit the law to the trials that completed or ran out of memory.

        A trial that ran out of memory may end before its device, data and optimiser
        are known: it bounds every curve that agrees with what is known of it.

        Raises
        ------
        FitError
            There is no such trial with a ``local_batch_size``.
        """
        rows = _memory_rows(observations)
        if rows.empty:
            raise FitError(
                "No row with a local_batch_size completed or ran out of memory. Run a "
                "throughput trial."
            )

        timing_only = {"device_type", "threads_per_rank", "emulated"}
        columns = [name for name in curve_columns(rows) if name not in timing_only]

        groups = group_rows(rows[~rows["failed"]], columns)
        for known, failures in group_rows(rows[rows["failed"]], columns).items():
            for key in agreeing(groups, dict(known)) or [known]:
                groups[key] = pd.concat([groups.get(key), failures])

        return cls(curves={key: MemoryCurve.fit(part) for key, part in groups.items()})

    def predict(
        self, configurations: pd.DataFrame | None = None, **keywords: Any
    ) -> pd.DataFrame:
        """Predict the peak memory of the fullest device.

        Parameters
        ----------
        configurations
            As for :meth:`largest_local_batch`, with ``local_batch_size``.
        **keywords
            The same without a frame: ``local_batch_size=[64, 128]``.

        Returns
        -------
        DataFrame
            The configurations' columns and ``peak_bytes``, the most that any curve
            which agrees with them says; NaN where fewer than two peaks were measured.

        Raises
        ------
        SpecError
            A batch, or a number of ranks, is not a positive number.
        """
        known = dict.fromkeys(name for key in self.curves for name, _ in key)
        configurations = asked_configurations(
            configurations,
            keywords,
            ["local_batch_size", "world_size", *known],
            example="local_batch_size",
        )

        batches = positive(configurations, "local_batch_size")
        peaks = [
            max((c.peak_bytes(batch, k) for c in curves), default=float("nan"))
            for batch, (curves, k) in zip(
                batches, self._agreeing(configurations), strict=True
            )
        ]
        return configurations.assign(peak_bytes=peaks)

    def largest_local_batch(
        self, configurations: pd.DataFrame, capacity_bytes: float | None = None
    ) -> pd.DataFrame:
        """Return the largest local batch that fits.

        Parameters
        ----------
        configurations
            Columns that tell the fitted curves apart; ``world_size`` where parameters
            are sharded.
        capacity_bytes
            Memory of one device; with it and measured peaks, the answer may be larger
            than the batches that ran.

        Returns
        -------
        DataFrame
            The configurations' columns, ``largest_local_batch`` (0: none is known to
            fit) and ``largest_fitting``, the largest that ran; where several curves
            agree with a configuration, the least of their answers.

        Raises
        ------
        SpecError
            The capacity, or a number of ranks, is not a positive number.
        """
        if capacity_bytes is not None and not 0 < capacity_bytes < np.inf:
            raise SpecError(
                f"capacity_bytes={capacity_bytes} must be a positive number: the "
                "memory of one device. Leave it out where it is not known.",
                code="memory_not_positive",
            )

        answers, fitting = [], []
        for curves, k in self._agreeing(configurations):
            batches = (c.largest_local_batch(k, capacity_bytes) for c in curves)
            answers.append(min(batches, default=0))
            fitting.append(min((c.largest_fitting(k) for c in curves), default=0))

        return configurations.assign(
            largest_local_batch=answers, largest_fitting=fitting
        )

    def __repr__(self) -> str:
        labels = [curve_label(key, self.curves) for key in self.curves]
        return law_in_words("memory law", labels, "law.predict(local_batch_size=64)")

    def _agreeing(self, frame: pd.DataFrame) -> list[tuple[list[MemoryCurve], float]]:
        positive_if_given(frame, "world_size")
        known = {name for key in self.curves for name, _ in key}
        names, curves = [name for name in frame.columns if name in known], []
        for row in frame[names].to_dict("records"):
            given = {str(n): value for n, value in row.items() if not pd.isna(value)}
            curves.append([self.curves[key] for key in agreeing(self.curves, given)])
        return list(zip(curves, _shards(frame).tolist(), strict=True))


def _shards(frame: pd.DataFrame) -> np.ndarray:
    # a replicated model has one
    sharded = np.array([strategy.shards_state for strategy in strategies(frame)], bool)
    ranks = numbers(frame, "world_size")
    return np.where(sharded & (ranks >= 1) & np.isfinite(ranks), ranks, 1.0)


def _memory_rows(observations: pd.DataFrame) -> pd.DataFrame:
    batch = numbers(observations, "local_batch_size")
    peaks = numbers(observations, "gpu_memory_peak_bytes")
    outcomes = observations.reindex(columns=["outcome"])["outcome"].astype(object)
    outcomes = outcomes.fillna("completed")
    rows = observations[curve_columns(observations)].assign(
        shards=_shards(observations),
        batch=batch,
        peak_bytes=np.where(np.isfinite(peaks) & (peaks > 0), peaks, np.nan),
        failed=outcomes.eq("out_of_memory"),
    )
    return rows.loc[outcomes.isin(_ANSWERS) & (batch >= 1) & (batch < np.inf)]

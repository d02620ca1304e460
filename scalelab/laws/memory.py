"""The largest local batch that fits, from completed and out-of-memory trials.

Activations grow linearly with the local batch; weights, gradients and optimiser state
do not, and where they are sharded over ``k`` ranks each holds its share::

    peak = replicated + sharded / k + per_sample * local batch

with no negative term. More ranks never need more of one device, so what ran on fewer
runs on more, and what failed on more fails on fewer.

References
----------
Rajbhandari et al. 2020, *ZeRO*, section 3 (what memory holds, and that only sharding
makes it depend on the number of ranks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from scalelab.errors import FitError
from scalelab.laws.rows import CurveKey, curve_columns, group_rows, numbers

_REPLICATED = ("ddp", "local_sgd", "parameter_server")
_ANSWERS = ("completed", "target_not_reached", "out_of_memory")
_SAFETY = 0.95  # allocators fragment: do not plan to fill the last 5% of a device
_MARGIN = 2.0  # standard errors of the fit that a planned peak stays below the limit


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCurve:
    """What is known about one workload on one device at one precision.

    Parameters
    ----------
    batches, shards : ndarray, shape (n_trials,)
        Local batch, and over how many ranks the model's state was spread.
    failed : ndarray of bool, shape (n_trials,)
        The trial ran out of memory.
    replicated_bytes, sharded_bytes, bytes_per_sample
        The fitted terms; NaN with fewer than two distinct measured peaks.
    scatter
        Standard deviation of measured over fitted peaks, relative.
    """

    batches: np.ndarray
    shards: np.ndarray
    failed: np.ndarray
    replicated_bytes: float
    sharded_bytes: float
    bytes_per_sample: float
    scatter: float

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> MemoryCurve:
        """Fit the rows of one curve."""
        peaks = frame[~frame["failed"]].dropna(subset=["peak_bytes"])
        highest = peaks.groupby(["batch", "shards"])["peak_bytes"].max()
        terms, scatter = np.full(3, np.nan), 0.0
        if len(highest) > 1:
            table = highest.reset_index()
            batch, shards, peak = table.to_numpy(float).T
            ones = np.ones(len(batch))
            features = np.column_stack([ones, 1 / shards, batch]) / peak[:, None]
            # equal shards everywhere tell nothing of sharding: take it as replicated
            used = np.array([True, len(np.unique(shards)) > 1, True])
            found, _ = nnls(features[:, used], ones)
            terms = np.zeros(3)
            terms[used] = found
            freedom = max(len(batch) - used.sum(), 1)
            scatter = float(np.sqrt(((features @ terms - 1) ** 2).sum() / freedom))
        return cls(
            batches=frame["batch"].to_numpy(float),
            shards=frame["shards"].to_numpy(float),
            failed=frame["failed"].to_numpy(bool),
            replicated_bytes=float(terms[0]),
            sharded_bytes=float(terms[1]),
            bytes_per_sample=float(terms[2]),
            scatter=scatter,
        )

    def largest_fitting(self, shards: float) -> int:
        """Return the largest batch that ran on as many ranks or fewer; 0: none did."""
        ran = self.batches[~self.failed & ~(self.shards > shards)]
        return int(ran.max()) if len(ran) else 0

    def smallest_failing(self, shards: float) -> int | None:
        """Return the smallest batch that ran out of memory there or on more ranks."""
        failing = self.batches[self.failed & ~(self.shards < shards)]
        return int(failing.min()) if len(failing) else None

    def peak_bytes(self, batch: float, shards: float) -> float:
        """Return the fitted peak of one device in bytes."""
        state = self.replicated_bytes + self.sharded_bytes / shards
        return state + self.bytes_per_sample * batch

    def largest_local_batch(self, shards: float, capacity_bytes: float | None) -> int:
        """Return the largest local batch to plan with; never one that failed."""
        answer = float(self.largest_fitting(shards))
        if capacity_bytes is not None and self.bytes_per_sample > 0:
            limit = _SAFETY * capacity_bytes / (1 + _MARGIN * self.scatter)
            room = limit - self.peak_bytes(0, shards)
            answer = max(answer, np.floor(room / self.bytes_per_sample))
        failing = self.smallest_failing(shards)
        if failing is not None:
            answer = min(answer, failing - 1)
        return int(max(answer, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLaw:
    """Which local batches fit, per workload, device, precision and sharding."""

    curves: Mapping[CurveKey, MemoryCurve]

    @classmethod
    def fit(cls, observations: pd.DataFrame) -> MemoryLaw:
        """Read which local batches ran and which did not.

        Raises
        ------
        FitError
            No row says whether its local batch fitted.
        """
        rows = _memory_rows(observations)
        if rows.empty:
            raise FitError(
                "No row completed or ran out of memory with a local_batch_size: run a "
                "throughput trial."
            )
        groups = group_rows(rows, _columns(rows))
        return cls(curves={key: MemoryCurve.fit(part) for key, part in groups.items()})

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
            Memory of one device; with measured peaks it lets the answer go beyond the
            batches that ran.

        Returns
        -------
        DataFrame
            The configurations' columns, ``largest_local_batch`` (0: none is known to
            fit), ``largest_fitting`` and ``smallest_failing`` (missing: none).
        """
        chosen = self._chosen(configurations)
        shards = _shards(configurations)
        pairs = list(zip(chosen, shards, strict=True))
        answers = [
            0 if curve is None else curve.largest_local_batch(k, capacity_bytes)
            for curve, k in pairs
        ]
        fitting = [
            0 if curve is None else curve.largest_fitting(k) for curve, k in pairs
        ]
        failing = [
            None if curve is None else curve.smallest_failing(k) for curve, k in pairs
        ]
        return configurations.assign(
            largest_local_batch=answers,
            largest_fitting=fitting,
            smallest_failing=pd.array(failing, dtype="Int64"),
        )

    def predict(self, configurations: pd.DataFrame) -> pd.DataFrame:
        """Predict the peak memory of the fullest device.

        Parameters
        ----------
        configurations
            As for :meth:`largest_local_batch`, with ``local_batch_size``.

        Returns
        -------
        DataFrame
            The configurations' columns and ``peak_bytes``; NaN where fewer than two
            peaks were measured.
        """
        chosen, shards = self._chosen(configurations), _shards(configurations)
        batches = numbers(configurations, "local_batch_size")
        peaks = [
            float("nan") if curve is None else curve.peak_bytes(batch, k)
            for curve, batch, k in zip(chosen, batches, shards, strict=True)
        ]
        return configurations.assign(peak_bytes=peaks)

    def _chosen(self, configurations: pd.DataFrame) -> list[MemoryCurve | None]:
        """Return the most cautious curve that agrees with each configuration."""
        names = [str(name) for name in configurations.columns]
        cells = zip(*(configurations[name].tolist() for name in names), strict=True)
        return [self._curve(dict(zip(names, row, strict=True))) for row in cells]

    def _curve(self, row: Mapping[str, object]) -> MemoryCurve | None:
        curves = [
            curve
            for key, curve in self.curves.items()
            if all(row.get(name, value) == value for name, value in key)
        ]
        return min(curves, key=lambda c: c.largest_fitting(np.inf), default=None)


def _columns(frame: pd.DataFrame) -> list[str]:
    timing_only = {"device_type", "threads_per_rank", "emulated"}
    return [name for name in curve_columns(frame) if name not in timing_only]


def _shards(frame: pd.DataFrame) -> np.ndarray:
    """Return over how many ranks a model's state is spread; 1 where replicated."""
    if "parallelism" not in frame.columns:
        return np.ones(len(frame))
    replicated = frame["parallelism"].fillna("ddp").isin(_REPLICATED).to_numpy(bool)
    ranks = numbers(frame, "world_size")
    return np.where(replicated | ~np.isfinite(ranks), 1.0, ranks)


def _memory_rows(observations: pd.DataFrame) -> pd.DataFrame:
    rows = observations[curve_columns(observations)].copy()
    rows["shards"] = _shards(observations)
    rows["batch"] = numbers(observations, "local_batch_size")
    rows["peak_bytes"] = numbers(observations, "gpu_memory_peak_bytes")
    if "outcome" not in observations.columns:
        rows["failed"] = False
        return rows[rows["batch"] > 0]
    outcome = observations["outcome"].fillna("completed")
    rows["failed"] = (outcome == "out_of_memory").to_numpy(bool)
    return rows[(rows["batch"] > 0) & outcome.isin(_ANSWERS)]

"""The largest local batch that fits, from completed and out-of-memory trials.

Activations grow linearly with the local batch; weights, gradients and optimiser state
do not: ``peak = fixed + slope * local batch``.

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

from scalelab.errors import FitError
from scalelab.laws.rows import CurveKey, curve_columns, group_rows, numbers

_REPLICATED = ("ddp", "local_sgd", "parameter_server")
_ANSWERS = ("completed", "target_not_reached", "out_of_memory")
_SAFETY = 0.95  # allocators fragment: do not plan to fill the last 5% of a device


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCurve:
    """What is known about one workload on one device.

    Parameters
    ----------
    largest_fitting
        Largest local batch that ran; 0 where none did.
    smallest_failing
        Smallest local batch that ran out of memory; None where none did.
    fixed_bytes, bytes_per_sample
        The fitted line; NaN with fewer than two measured peaks.
    """

    largest_fitting: int
    smallest_failing: int | None
    fixed_bytes: float
    bytes_per_sample: float

    def largest_local_batch(self, capacity_bytes: float | None) -> int:
        """Return the largest local batch to plan with; never one that failed."""
        answer = float(self.largest_fitting)
        if capacity_bytes is not None and self.bytes_per_sample > 0:
            room = _SAFETY * capacity_bytes - self.fixed_bytes
            answer = max(answer, room // self.bytes_per_sample)
        if self.smallest_failing is not None:
            answer = min(answer, self.smallest_failing - 1)
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
        return cls(curves={key: _fit_curve(part) for key, part in groups.items()})

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
        frame = configurations.assign(shards=_shards(configurations))
        names = [str(name) for name in frame.columns]
        cells = zip(*(frame[name].tolist() for name in names), strict=True)
        curves = [self._curve(dict(zip(names, row, strict=True))) for row in cells]
        return configurations.assign(
            largest_local_batch=[c.largest_local_batch(capacity_bytes) for c in curves],
            largest_fitting=[c.largest_fitting for c in curves],
            smallest_failing=pd.array(
                [c.smallest_failing for c in curves], dtype="Int64"
            ),
        )

    def _curve(self, row: Mapping[str, object]) -> MemoryCurve:
        """Return what all curves that agree with a configuration have in common."""
        curves = [
            curve
            for key, curve in self.curves.items()
            if all(row.get(name, value) == value for name, value in key)
        ]
        if not curves:
            return MemoryCurve(
                largest_fitting=0,
                smallest_failing=None,
                fixed_bytes=float("nan"),
                bytes_per_sample=float("nan"),
            )
        return min(curves, key=lambda curve: curve.largest_fitting)


def _columns(frame: pd.DataFrame) -> list[str]:
    timing_only = {"device_type", "threads_per_rank", "emulated"}
    return [*(n for n in curve_columns(frame) if n not in timing_only), "shards"]


def _shards(frame: pd.DataFrame) -> np.ndarray:
    """Return over how many ranks a model's state is spread; 1 where replicated."""
    if "parallelism" not in frame.columns:
        return np.ones(len(frame))
    replicated = frame["parallelism"].fillna("ddp").isin(_REPLICATED).to_numpy(bool)
    return np.where(replicated, 1.0, numbers(frame, "world_size"))


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


def _fit_curve(frame: pd.DataFrame) -> MemoryCurve:
    fitting = frame[~frame["failed"]]
    failing = frame[frame["failed"]]["batch"]
    peaks = fitting.dropna(subset=["peak_bytes"]).groupby("batch")["peak_bytes"].max()
    line = (float("nan"), float("nan"))
    if len(peaks) > 1:
        slope, fixed = np.polyfit(peaks.index.to_numpy(float), peaks.to_numpy(float), 1)
        line = (float(slope), float(fixed))
    return MemoryCurve(
        largest_fitting=int(fitting["batch"].max()) if len(fitting) else 0,
        smallest_failing=int(failing.min()) if len(failing) else None,
        bytes_per_sample=line[0],
        fixed_bytes=line[1],
    )

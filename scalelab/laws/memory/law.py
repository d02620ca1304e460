"""The memory law: peak memory, and the largest local batch that fits on a device.

Activations grow linearly with the local batch; weights, gradients and optimiser state
do not, and where they are sharded over ``k`` ranks each holds its share::

    peak = replicated + sharded / k + per_sample * local batch

with no negative term, see :mod:`scalelab.laws.memory.peaks`. More ranks never need
more of one device: a batch that ran on fewer ranks also runs on more, and a batch that
failed on more ranks also fails on fewer.

References
----------
Rajbhandari et al. 2020, *ZeRO*, section 3 (what memory holds, and that only sharding
makes it depend on the number of ranks).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.guessed import Guided
from scalelab.laws.asked import asked_configurations, law_in_words
from scalelab.laws.memory.peaks import Peaks
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
                "memory of one device. Leave it out where it is not known."
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

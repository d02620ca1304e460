"""The convergence law on one curve: posterior draws and predictions from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import every
from scalelab.inputs.support import Support
from scalelab.laws.convergence.fit import BatchData, Draws, posterior
from scalelab.laws.interval import SEED, central, normals

_SAME = 1e-9  # difference of logs below which two batches are one


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """The convergence law fitted to one target under one learning-rate rule."""

    draws: Draws
    data: BatchData
    measured: np.ndarray

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> BatchCurve:
        """Fit the rows of one curve, see :class:`TargetRows`."""
        data = BatchData.of(frame)
        return cls(
            draws=posterior(data),
            data=data,
            measured=np.unique(frame["global_batch_size"].to_numpy(float)),
        )

    @property
    def num_reached(self) -> int:
        """Number of trials that reached the target."""
        return int(self.data.count.sum())

    @property
    def num_censored(self) -> int:
        """Number of trials that stopped before the target."""
        return int(self.data.bound_count.sum())

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of log samples between runs, shape (n_draws, 1)."""
        return self.draws.spread[:, None]

    def log_median(
        self, batch: np.ndarray, normalization: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw log median samples to target, shape (n_draws, n_batches).

        The prediction for a measured batch rests on its own runs and on the formula,
        that for any other batch on the formula alone.
        """
        log_batch, log_norm = self._logs(batch, normalization)
        middle = self.draws.log_samples(log_batch, log_norm)
        middle += self.data.log_sample_unit
        for column, known in self._measured_at(log_batch, log_norm):
            middle[:, column] += self.draws.errors[:, known]
        return np.asarray(middle)

    def log_samples(
        self, batch: np.ndarray, normalization: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw log samples with the error of the formula at batches not measured."""
        log_batch, log_norm = self._logs(batch, normalization)
        error = self.draws.form[:, None] * normals(SEED + 4)
        errors = np.repeat(error, len(log_batch), axis=1)
        for column, _ in self._measured_at(log_batch, log_norm):
            errors[:, column] = 0.0
        return np.asarray(self.log_median(batch, normalization) + errors)

    def _logs(
        self, batch: np.ndarray, normalization: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        log_batch = np.log(batch) - self.data.log_batch_unit
        if normalization is None:
            return log_batch, np.zeros(len(batch))
        log_norm = np.log(normalization) - self.data.log_normalization_unit
        return log_batch, np.where(np.isfinite(log_norm), log_norm, 0.0)

    def _measured_at(
        self, log_batch: np.ndarray, log_norm: np.ndarray
    ) -> Iterator[tuple[int, int]]:
        """Yield (column, measured pair) of every configuration that was measured."""
        for column, (x, norm) in enumerate(zip(log_batch, log_norm, strict=True)):
            same = np.isclose(self.data.log_batch, x, rtol=0, atol=_SAME)
            same &= np.isclose(self.data.log_normalization, norm, rtol=0, atol=_SAME)
            if same.any():
                yield column, int(same.argmax())

    def log_one_run(self, logs: np.ndarray) -> np.ndarray:
        """Add the spread between repeated runs to log samples; shape of ``logs``."""
        return np.asarray(logs + self.spread * normals(SEED + 2))

    def reaching(self, batch: np.ndarray) -> np.ndarray:
        """Draw the probability that a run reaches the target, however long it is."""
        log_batch = np.log(batch) - self.data.log_batch_unit
        return np.asarray(np.exp(self.draws.log_reaching(log_batch)))

    def support(self, batch: np.ndarray) -> np.ndarray:
        """Return a :class:`Support` value per batch, as text."""
        if not self.num_reached:
            return np.full(len(batch), Support.NOT_MEASURED.value)
        inside = (batch >= self.measured[0]) & (batch <= self.measured[-1])
        kind = np.where(inside, Support.INTERPOLATED.value, Support.EXTRAPOLATED.value)
        if len(self.measured) == 1:
            kind = np.full(len(batch), Support.NOT_MEASURED.value)
        return np.where(np.isin(batch, self.measured), Support.MEASURED.value, kind)

    def remedy(self, batch: float) -> str:
        """Say why a batch has no answer, and which trial would give it one."""
        smallest = f"global batch {self.measured.min():.0f}"
        if self.num_reached:
            return (
                f"Only the {smallest} was measured. Run a convergence trial at global "
                f"batch {batch:.0f}."
            )
        runs = every(self.num_censored, "run")
        return f"{runs} stopped before the target. Train longer, first at {smallest}."


def parameter_rows(curve: BatchCurve, interval: float) -> list[tuple[object, ...]]:
    """Return name, value, lo, hi, unit, identified and remedy per parameter."""
    draws, data = curve.draws, curve.data
    minimum = np.exp(data.log_sample_unit + draws.log_minimum)
    critical = np.exp(data.log_batch_unit + draws.log_critical)
    failing = np.exp(data.log_batch_unit + draws.log_fail)
    several = len(curve.measured) > 1 and curve.num_reached > 1
    many, repeated = len(curve.measured) > 3, bool((data.count > 1).any())
    another = "Measure another global batch."
    repeat = "Repeat a trial with another seed."
    larger = "Measure batches so large that some runs stop before the target."
    parameters = [
        ("min_samples", minimum, "samples", several, another),
        ("critical_batch_size", critical, "samples", several, another),
        ("form_error", draws.form, "log", many, "Measure four global batches."),
        ("run_to_run_spread", draws.spread, "log", repeated, repeat),
        ("failing_batch_size", failing, "samples", curve.num_censored > 0, larger),
    ]
    if len(np.unique(data.log_normalization)) > 1:
        parameters.append(("normalization_effect", draws.effect, "1", True, ""))
    rows: list[tuple[object, ...]] = []
    for name, values, unit, is_known, remedy in parameters:
        lo, hi = (float(end) for end in central(values, interval))
        middle, remedy = float(np.median(values)), "" if is_known else remedy
        rows.append((name, middle, lo, hi, unit, is_known, remedy))
    return rows

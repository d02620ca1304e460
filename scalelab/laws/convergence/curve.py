"""The convergence law on one curve: posterior draws and predictions from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.inputs.numerals import every
from scalelab.laws.convergence.fit import BatchData, Draws, posterior
from scalelab.laws.interval import NUM_DRAWS, SEED, central
from scalelab.laws.support import Support

_SAME = 1e-9  # difference of logs below which two batches are one


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """The convergence law fitted to one target under one learning-rate rule.

    Parameters
    ----------
    draws
        Draws of the parameters.
    data
        The runs, reduced to one entry for each pair.
    log_normalization_reference
        Log of the normalisation batch of a configuration that names none; NaN where
        none was measured.
    measured : ndarray
        The measured global batches, sorted.
    num_reached, num_censored
        Number of trials that reached the target, and that stopped before it.
    """

    draws: Draws
    data: BatchData
    log_normalization_reference: float
    measured: np.ndarray
    num_reached: int
    num_censored: int

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> BatchCurve:
        """Fit the rows of one curve, see :class:`TargetRows`."""
        data = BatchData.of(frame)
        normalization = np.log(frame["normalization"].to_numpy(float))
        known = normalization[np.isfinite(normalization)]
        return cls(
            draws=posterior(data),
            data=data,
            log_normalization_reference=float(known.mean())
            if len(known)
            else float("nan"),
            measured=np.unique(frame["global_batch_size"].to_numpy(float)),
            num_reached=int(data.count.sum()),
            num_censored=int(data.bound_count.sum()),
        )

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
        error = self.draws.form * _strata(SEED + 4)
        errors = np.repeat(error[:, None], len(log_batch), axis=1)
        for column, _ in self._measured_at(log_batch, log_norm):
            errors[:, column] = 0.0
        return np.asarray(self.log_median(batch, normalization) + errors)

    def _logs(
        self, batch: np.ndarray, normalization: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        log_batch = np.log(batch) - self.data.log_batch_unit
        return log_batch, self._relative(batch, normalization)

    def _relative(
        self, batch: np.ndarray, normalization: np.ndarray | None
    ) -> np.ndarray:
        if normalization is None:
            return np.zeros(len(batch))
        log_norm = np.log(normalization) - self.log_normalization_reference
        return np.where(np.isfinite(log_norm), log_norm, 0.0)

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
        return np.asarray(logs + self.spread * _strata(SEED + 2)[:, None])

    def reaching(self, batch: np.ndarray) -> np.ndarray:
        """Draw the probability that a run reaches the target, however long it is."""
        log_batch = np.log(batch) - self.data.log_batch_unit
        return np.asarray(np.exp(self.draws.log_reaching(log_batch)))

    def support(self, batch: np.ndarray) -> np.ndarray:
        """Return a :class:`Support` value per batch, as text."""
        low, high = self.measured.min(), self.measured.max()
        inside = (batch >= low) & (batch <= high)
        kind = np.where(inside, Support.INTERPOLATED, Support.EXTRAPOLATED).astype(
            object
        )
        if len(self.measured) == 1:
            kind[:] = Support.NOT_MEASURED
        kind[np.isin(batch, self.measured)] = Support.MEASURED
        if not self.num_reached:
            kind[:] = Support.NOT_MEASURED
        return np.array([str(value) for value in kind])

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


def _strata(seed: int) -> np.ndarray:
    """Return stratified draws of a normal distribution in random order, (n_draws,).

    Their quantiles are more exact than those of independent draws.
    """
    order = np.random.default_rng(seed).permutation(NUM_DRAWS)
    return np.asarray(ndtri((order + 0.5) / NUM_DRAWS))


def parameter_rows(curve: BatchCurve, interval: float) -> list[tuple[object, ...]]:
    """Return name, value, lo, hi, unit, identified and remedy per parameter."""
    draws, known = curve.draws, len(curve.measured) > 1 and curve.num_reached > 1
    repeated = bool((curve.data.count > 1).any())
    samples, batches = curve.data.log_sample_unit, curve.data.log_batch_unit
    another = "Measure another global batch."
    rows: list[tuple[object, ...]] = []
    for name, logs, unit, is_known, remedy in (
        ("min_samples", samples + draws.log_minimum, "samples", known, another),
        (
            "critical_batch_size",
            batches + draws.log_critical,
            "samples",
            known,
            another,
        ),
        (
            "form_error",
            np.log(draws.form),
            "log",
            len(curve.measured) > 3,
            "Measure four global batches.",
        ),
        (
            "run_to_run_spread",
            np.log(draws.spread),
            "log",
            repeated,
            "Repeat a trial with another seed.",
        ),
        (
            "failing_batch_size",
            batches + draws.log_fail,
            "samples",
            curve.num_censored > 0,
            "Measure batches so large that some runs stop before the target.",
        ),
    ):
        values = np.exp(logs)
        lo, hi = central(values, interval)
        middle = float(np.median(values))
        text = "" if is_known else remedy
        rows.append((name, middle, float(lo), float(hi), unit, is_known, text))
    if len(np.unique(curve.data.log_normalization)) > 1:
        lo, hi = central(draws.effect, interval)
        middle = float(np.median(draws.effect))
        rows.append(
            ("normalization_effect", middle, float(lo), float(hi), "1", True, "")
        )
    return rows

"""Samples to a target against the global batch, per learning-rate rule.

The formula stands in :mod:`scalelab.laws.convergence_fit`, its derivation and its known
failures in ``docs/laws.md``.

>>> import pandas as pd
>>> rows = pd.DataFrame(
...     {"global_batch_size": [64, 128, 256, 512],
...      "samples_to_target": [21_000, 24_500, 30_000, 41_000]}
... )
>>> law = ConvergenceLaw.fit(rows)
>>> answer = law.predict(pd.DataFrame({"global_batch_size": [512, 1024]}))
>>> answer["support"].tolist()
['measured', 'extrapolated']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtr

from scalelab.errors import FitError, SpecError
from scalelab.laws.convergence_fit import (
    ODD_SCALE,
    ODD_SHARE,
    BatchData,
    Posterior,
    log_failing,
    log_growth,
    log_samples,
)
from scalelab.laws.convergence_rows import split_targets, target_rows, with_workers
from scalelab.laws.interval import SEED, central
from scalelab.laws.rows import CurveKey, curve_label, numbers
from scalelab.laws.support import Support

_SAME = 1e-9  # difference of logs below which two batches are one


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """Samples to one target under one rule.

    Parameters
    ----------
    draws : ndarray, shape (n_draws, 7)
        The posterior, see :data:`scalelab.laws.convergence_fit.NAMES`.
    errors : ndarray, shape (n_draws, n_batches)
        Error of the form at each measured pair of batch and normalisation batch.
    data
        The runs, reduced per pair.
    log_normalization_reference
        Log of the normalisation batch that a configuration has which names none; NaN
        where none was measured.
    measured : ndarray
        Distinct global batches tried, sorted.
    num_reached, num_censored
        Trials that reached the target, and that stopped before it.
    """

    draws: np.ndarray
    errors: np.ndarray
    data: BatchData
    log_normalization_reference: float
    measured: np.ndarray
    num_reached: int
    num_censored: int

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> BatchCurve:
        """Fit the rows of one curve, see :class:`TargetRows`."""
        data = BatchData.of(frame)
        draws, errors = Posterior(data).draw()
        normalization = np.log(frame["normalization"].to_numpy(float))
        known = normalization[np.isfinite(normalization)]
        return cls(
            draws=draws,
            errors=errors,
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
        return np.asarray(np.exp(self.draws[:, 4:5]))

    def log_samples(
        self, batch: np.ndarray, normalization: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw log median samples to target, shape (n_draws, n_batches).

        A batch that was measured is answered by its own runs as well, any other by the
        formula and the error it makes.
        """
        log_batch = np.log(batch) - self.data.log_batch_unit
        log_norm = self._relative(batch, normalization)
        middle = log_samples(self.draws, log_batch, log_norm)
        middle += self.data.log_sample_unit
        return np.asarray(middle + self._form_error(log_batch, log_norm))

    def _relative(
        self, batch: np.ndarray, normalization: np.ndarray | None
    ) -> np.ndarray:
        if normalization is None:
            return np.zeros(len(batch))
        log_norm = np.log(normalization) - self.log_normalization_reference
        return np.where(np.isfinite(log_norm), log_norm, 0.0)

    def _form_error(self, log_batch: np.ndarray, log_norm: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(SEED + 4)
        shape = (len(self.draws), 1)
        is_odd = rng.random(shape) < ODD_SHARE
        scale = np.exp(self.draws[:, 3:4]) * np.where(is_odd, ODD_SCALE, 1.0)
        errors = np.repeat(scale * rng.standard_normal(shape), len(log_batch), axis=1)
        for column, (x, norm) in enumerate(zip(log_batch, log_norm, strict=True)):
            same = np.isclose(self.data.log_batch, x, rtol=0, atol=_SAME)
            same &= np.isclose(self.data.log_normalization, norm, rtol=0, atol=_SAME)
            if same.any():
                errors[:, column] = self.errors[:, same.argmax()]
        return errors

    def reaching(self, batch: np.ndarray) -> np.ndarray:
        """Draw the probability of reaching the target at all, like the samples."""
        log_batch = np.log(batch) - self.data.log_batch_unit
        return np.asarray(np.exp(-log_failing(self.draws, log_batch)))

    def support(self, batch: np.ndarray) -> np.ndarray:
        """Return a :class:`Support` value per batch, as text."""
        low, high = self.measured.min(), self.measured.max()
        inside = (batch >= low) & (batch <= high)
        kind = np.where(inside, Support.INTERPOLATED, Support.EXTRAPOLATED).astype(
            object
        )
        if len(self.measured) == 1:
            kind[:] = Support.UNSUPPORTED
        kind[np.isin(batch, self.measured)] = Support.MEASURED
        if not self.num_reached:
            kind[:] = Support.UNSUPPORTED
        return np.array([str(value) for value in kind])


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvergenceLaw:
    """Samples to target against global batch, per learning-rate rule and target.

    Parameters
    ----------
    curves
        Fitted curves by workload, rule, target and whatever else is held fixed; where
        ranks learn from stale weights also by their number.
    left_out
        Number of rows with a target that were not fitted, by reason.
    """

    curves: Mapping[CurveKey, BatchCurve]
    left_out: Mapping[str, int]

    @classmethod
    def fit(cls, observations: pd.DataFrame) -> ConvergenceLaw:
        """Fit every curve of the rows that tried to reach a target.

        Parameters
        ----------
        observations
            Rows with ``global_batch_size`` and either ``samples_to_target`` (reached)
            or ``num_samples`` (seen when the trial gave up); where batch norm is used
            ``normalization_batch_size``; where measured ``gradient_noise_scale``.

        Raises
        ------
        FitError
            No row tried to reach a target.
        """
        rows = target_rows(observations)
        if rows.frame.empty:
            raise FitError(
                "No row tried to reach a target. Run trials of kind convergence."
            )
        curves = {
            key: BatchCurve.fit(frame)
            for key, frame in split_targets(rows.frame).items()
        }
        return cls(curves=curves, left_out=rows.left_out)

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the samples one further run needs.

        Parameters
        ----------
        configurations
            ``global_batch_size``; with several curves the columns that tell them apart;
            optionally ``normalization_batch_size`` and ``budget_samples``.
        interval
            Probability mass of the interval, in (0, 1).

        Returns
        -------
        DataFrame
            The configurations' columns, ``samples_to_target``, ``samples_lo``,
            ``samples_hi`` of a run that reaches the target, ``probability_of_reaching``
            (within ``budget_samples``; at all where none is given) and ``support``; NaN
            where ``unsupported``.
        """
        if not 0 < interval < 1:
            raise SpecError(f"interval={interval} must lie between 0 and 1, e.g. 0.8.")
        frame = with_workers(configurations.reset_index(drop=True))
        answers = []
        for key, part in split_targets(frame).items():
            curve = self.curves[self.curve_of(key)]
            answers.append(_predict(curve, part, interval))
        answer = pd.concat(answers).sort_index()
        columns = {name: answer[name].to_numpy() for name in answer.columns}
        return configurations.assign(**columns)

    def sample(
        self,
        key: CurveKey,
        batch: np.ndarray,
        normalization: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw the samples one further run needs that reaches the target.

        Parameters
        ----------
        key
            Names the curve.
        batch, normalization : ndarray, shape (n_batches,)
            Global batches, and what one batch-norm statistic sees.

        Returns
        -------
        ndarray, shape (n_draws, n_batches)
        """
        curve = self.curves[self.curve_of(key)]
        logs = _one_run(curve, curve.log_samples(batch, normalization))
        return np.asarray(np.exp(logs))

    def reaches(self, key: CurveKey, batch: np.ndarray) -> np.ndarray:
        """Draw whether one further run reaches the target, shape like the samples."""
        chance = self.curves[self.curve_of(key)].reaching(batch)
        rng = np.random.default_rng(SEED + 5)
        return np.asarray(rng.random((len(chance), 1)) < chance)

    def curve_of(self, key: CurveKey) -> CurveKey:
        """Return the one curve that agrees with these columns.

        Raises
        ------
        SpecError
            None or several do; lists them.
        """
        asked = dict(key)
        matches = [
            curve
            for curve in self.curves
            if all(asked.get(name, value) == value for name, value in curve)
        ]
        if len(matches) == 1:
            return matches[0]
        labels = "; ".join(curve_label(curve, self.curves) for curve in self.curves)
        raise SpecError(
            f"{asked or 'The configuration'} matches {len(matches)} of "
            f"{len(self.curves)} convergence curves: {labels}. Name one."
        )

    @property
    def critical_batch_size(self) -> pd.DataFrame:
        """The batch at which twice ``S_min`` is needed: curve, value, lo, hi (80%)."""
        table = self.parameters()
        return table[table["name"] == "critical_batch_size"].drop(columns="name")

    def parameters(self, interval: float = 0.8) -> pd.DataFrame:
        """Return curve, name, value, lo, hi, unit, identified and remedy."""
        rows = [
            (curve_label(key, self.curves), *row)
            for key, curve in self.curves.items()
            for row in _parameter_rows(curve, interval)
        ]
        columns = ["curve", "name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def identifiable(self) -> pd.DataFrame:
        """Which parameters the rows pin down: curve, parameter, identified, remedy."""
        table = self.parameters().rename(columns={"name": "parameter"})
        return table[["curve", "parameter", "identified", "remedy"]]


def _one_run(curve: BatchCurve, logs: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(SEED + 2)
    return np.asarray(logs + curve.spread * rng.standard_normal((len(logs), 1)))


def _predict(curve: BatchCurve, frame: pd.DataFrame, interval: float) -> pd.DataFrame:
    batch = numbers(frame, "global_batch_size")
    budget = np.log(numbers(frame, "budget_samples"))
    budget = np.where(np.isfinite(budget), budget, np.inf)
    logs = curve.log_samples(batch, numbers(frame, "normalization_batch_size"))
    lo, hi = central(_one_run(curve, logs), interval)
    support = curve.support(batch)
    known = support != Support.UNSUPPORTED
    within = ndtr((budget - logs) / curve.spread) * curve.reaching(batch)
    values = {
        "samples_to_target": np.exp(np.median(logs, axis=0)),
        "samples_lo": np.exp(lo),
        "samples_hi": np.exp(hi),
        "probability_of_reaching": within.mean(axis=0),
    }
    answer = {name: np.where(known, column, np.nan) for name, column in values.items()}
    return pd.DataFrame({**answer, "support": support}, index=frame.index)


def _parameter_rows(curve: BatchCurve, interval: float) -> list[tuple[object, ...]]:
    """Return name, value, lo, hi, unit, identified and remedy per parameter."""
    draws, known = curve.draws, len(curve.measured) > 1 and curve.num_reached > 1
    repeated = bool((curve.data.count > 1).any())
    growth = log_growth(draws, np.zeros(1))[:, 0]
    samples, batches = curve.data.log_sample_unit, curve.data.log_batch_unit
    another = "Measure another global batch."
    rows: list[tuple[object, ...]] = []
    for name, logs, unit, is_known, remedy in (
        ("min_samples", samples + draws[:, 0] - growth, "samples", known, another),
        ("critical_batch_size", batches + draws[:, 1], "samples", known, another),
        (
            "batch_exponent",
            draws[:, 2],
            "1",
            len(curve.measured) > 3,
            "Measure four global batches around the critical one.",
        ),
        (
            "form_error",
            draws[:, 3],
            "log",
            len(curve.measured) > 3,
            "Measure four global batches.",
        ),
        (
            "run_to_run_spread",
            draws[:, 4],
            "log",
            repeated,
            "Repeat a trial with another seed.",
        ),
        (
            "failing_batch_size",
            batches + draws[:, 5],
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
        lo, hi = central(draws[:, 6], interval)
        middle = float(np.median(draws[:, 6]))
        rows.append(
            ("normalization_effect", middle, float(lo), float(hi), "1", True, "")
        )
    return rows

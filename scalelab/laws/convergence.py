"""Samples to a target against the global batch, per learning-rate rule.

::

    S(B) = S_min (1 + B / B_crit),    log S observed ~ Normal(log S(B), spread)

A trial that stopped before its target is right-censored: its S lies beyond the samples
it saw. The run-to-run spread is lognormal, so the probability of reaching the target
within a budget follows.

References
----------
McCandlish et al. 2018, *An empirical model of large-batch training*, equations 2.11 and
5.1 (S_min, B_crit; B_crit is near the gradient noise scale).
Shallue et al. 2018, *Measuring the effects of data parallelism*, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import log_ndtr, ndtr

from scalelab.errors import FitError, SpecError
from scalelab.laws.interval import NUM_WALKERS, SEED, LogDensity, central, sample
from scalelab.laws.rows import (
    CurveKey,
    curve_label,
    group_rows,
    invalid_reasons,
    numbers,
)
from scalelab.laws.support import Support

_COLUMNS = (
    "workload",
    "dataset",
    "parallelism",
    "precision",
    "optimizer",
    "schedule",
    "lr_rule",
    "target_metric",
    "metric_mode",
    "target_value",
)
# times are spoilt by these, the samples a run needs are not
_HARMLESS = frozenset(
    {
        "oversubscribed_cores",
        "loopback_nodes",
        "unexpected_placement",
        "shared_node",
        "unsteady_clock",
    }
)
_NUM_STEPS = 400
_USUAL_SPREAD, _SPREAD_BELIEF = 0.08, 0.8
_CRITICAL_BELIEF = 2.0  # standard deviations of log B_crit when nothing is measured
_NOISE_SCALE_BELIEF = 1.0  # and when a gradient noise scale is


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """Samples to one target under one rule.

    Parameters
    ----------
    draws : ndarray, shape (n_draws, 3)
        Logarithms of S_min (samples), B_crit (samples) and the spread.
    measured : ndarray
        Distinct global batches tried, sorted.
    num_reached, num_censored
        Trials that reached the target, and that stopped before it.
    """

    draws: np.ndarray
    measured: np.ndarray
    num_reached: int
    num_censored: int

    def log_samples(self, batch: np.ndarray) -> np.ndarray:
        """Draw log median samples to target, shape (n_draws, n_batches)."""
        log_min, log_critical = self.draws[:, :1], self.draws[:, 1:2]
        return np.asarray(log_min + np.log1p(batch / np.exp(log_critical)))

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
        Fitted curves by workload, rule, target and whatever else is held fixed.
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
            or ``num_samples`` (seen when the trial gave up).

        Raises
        ------
        FitError
            No row tried to reach a target.
        """
        rows, left_out = _target_rows(observations)
        if rows.empty:
            raise FitError(
                "No row tried to reach a target. Run trials of kind convergence."
            )
        curves = {
            key: _fit_curve(frame)
            for key, frame in group_rows(rows, _known(rows)).items()
        }
        return cls(curves=curves, left_out=left_out)

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the samples one further run needs.

        Parameters
        ----------
        configurations
            ``global_batch_size``; with several curves the columns that tell them apart;
            optionally ``budget_samples``.
        interval
            Probability mass of the interval, in (0, 1).

        Returns
        -------
        DataFrame
            The configurations' columns, ``samples_to_target``, ``samples_lo``,
            ``samples_hi``, ``probability_of_reaching`` (within ``budget_samples``; NaN
            without it) and ``support``; NaN where ``unsupported``.
        """
        frame = configurations.reset_index(drop=True)
        answers = []
        for key, part in group_rows(frame, _known(frame)).items():
            curve = self.curves[self.curve_of(key)]
            answers.append(_predict(curve, part, interval))
        answer = pd.concat(answers).sort_index()
        columns = {name: answer[name].to_numpy() for name in answer.columns}
        return configurations.assign(**columns)

    def sample(self, key: CurveKey, batch: np.ndarray) -> np.ndarray:
        """Draw the samples one further run needs, shape (n_draws, n_batches)."""
        curve = self.curves[self.curve_of(key)]
        rng = np.random.default_rng(SEED + 2)
        luck = rng.standard_normal((len(curve.draws), 1)) * np.exp(curve.draws[:, 2:])
        return np.asarray(np.exp(curve.log_samples(batch) + luck))

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
        rows = []
        for key, curve in self.curves.items():
            label = curve_label(key, self.curves)
            values = np.exp(curve.draws)
            lo, hi = central(values, interval)
            known = len(curve.measured) > 1 and curve.num_reached > 1
            remedy = "" if known else "Measure another global batch."
            for position, (name, unit) in enumerate(
                (
                    ("min_samples", "samples"),
                    ("critical_batch_size", "samples"),
                    ("run_to_run_spread", "log"),
                )
            ):
                middle = float(np.median(values[:, position]))
                ends = (float(lo[position]), float(hi[position]))
                rows.append((label, name, middle, *ends, unit, known, remedy))
        columns = ["curve", "name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def identifiable(self) -> pd.DataFrame:
        """Which parameters the rows pin down: curve, parameter, identified, remedy."""
        table = self.parameters().rename(columns={"name": "parameter"})
        return table[["curve", "parameter", "identified", "remedy"]]


def _known(frame: pd.DataFrame) -> list[str]:
    return [name for name in _COLUMNS if name in frame.columns]


def _target_rows(observations: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    columns = _known(observations)
    rows = observations[columns].copy()
    if not {"target_metric", "samples_to_target"} & set(observations.columns):
        return rows.iloc[:0], {}
    rows["global_batch_size"] = numbers(observations, "global_batch_size")
    rows["noise_scale"] = numbers(observations, "gradient_noise_scale")
    reached = numbers(observations, "samples_to_target")
    seen = numbers(observations, "num_samples")
    censored = ~np.isfinite(reached)
    gave_up = _flag(observations, "outcome", "target_not_reached")
    gave_up |= _flag(observations, "reached_target", False)
    rows["samples"] = np.where(censored, seen, reached)
    rows["censored"] = censored
    asked = np.isfinite(reached) | gave_up
    spoilt = np.array(
        [
            bool(set(invalid_reasons(cell)) - _HARMLESS)
            for cell in _cells(observations, "validity")
        ],
        dtype=bool,
    )
    usable = np.isfinite(rows["samples"]) & (rows["samples"] > 0)
    usable &= rows["global_batch_size"] > 0
    reasons = np.where(spoilt, "validity", np.where(usable, "", "no sample count"))
    left_out = Counter(str(reason) for reason in reasons[asked] if reason)
    return rows[asked & usable & ~spoilt], dict(left_out)


def _cells(frame: pd.DataFrame, name: str) -> list[object]:
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)


def _flag(frame: pd.DataFrame, name: str, value: object) -> np.ndarray:
    cells = _cells(frame, name)
    matches = [
        cell is not pd.NA and cell is not None and cell == value for cell in cells
    ]
    return np.array(matches, dtype=bool)


def _fit_curve(frame: pd.DataFrame) -> BatchCurve:
    ordered = frame.sort_values(["global_batch_size", "samples"])
    batch = ordered["global_batch_size"].to_numpy(float)
    samples = np.log(ordered["samples"].to_numpy(float))
    censored = ordered["censored"].to_numpy(bool)
    noise_scale = ordered["noise_scale"].median()
    if np.isfinite(noise_scale) and noise_scale > 0:
        critical, belief = np.log(noise_scale), _NOISE_SCALE_BELIEF
    else:
        critical, belief = np.log(4 * batch.max()), _CRITICAL_BELIEF

    def log_density(positions: np.ndarray) -> np.ndarray:
        log_min, log_critical, log_spread = (column[:, None] for column in positions.T)
        spread = np.exp(np.clip(log_spread, -8, 3))
        ratio = np.exp(np.clip(log_critical, -30, 40))
        score = (samples - log_min - np.log1p(batch / ratio)) / spread
        seen = -0.5 * score**2 - np.log(spread)
        terms = np.where(censored, log_ndtr(-score), seen).sum(axis=1)
        terms -= 0.5 * ((positions[:, 1] - critical) / belief) ** 2
        terms -= 0.5 * ((positions[:, 2] - np.log(_USUAL_SPREAD)) / _SPREAD_BELIEF) ** 2
        # keeps S_min finite where nothing reached the target
        return np.asarray(terms - 0.5 * ((positions[:, 0] - samples.min()) / 3.0) ** 2)

    rng = np.random.default_rng(SEED)
    center = _best_of_grid(log_density, samples.min(), critical)
    start = center + rng.standard_normal((NUM_WALKERS, 3)) * [0.05, 0.3, 0.3]
    return BatchCurve(
        draws=sample(log_density, start, _NUM_STEPS),
        measured=np.unique(batch),
        num_reached=int((~censored).sum()),
        num_censored=int(censored.sum()),
    )


def _best_of_grid(
    log_density: LogDensity, log_samples: float, log_critical: float
) -> np.ndarray:
    """Return the likeliest position of a coarse grid, where the chain starts."""
    axes = (
        log_samples + np.linspace(-3, 1, 25),
        log_critical + np.linspace(-4, 4, 25),
        np.log(_USUAL_SPREAD) + np.linspace(-1, 2, 7),
    )
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, len(axes))
    return np.asarray(grid[log_density(grid).argmax()])


def _predict(curve: BatchCurve, frame: pd.DataFrame, interval: float) -> pd.DataFrame:
    batch = numbers(frame, "global_batch_size")
    budget = np.log(numbers(frame, "budget_samples"))
    logs = curve.log_samples(batch)
    spread = np.exp(curve.draws[:, 2:])
    rng = np.random.default_rng(SEED + 2)
    one_run = logs + spread * rng.standard_normal((len(logs), 1))
    lo, hi = central(one_run, interval)
    support = curve.support(batch)
    known = support != Support.UNSUPPORTED
    reaching = ndtr((budget - logs) / spread).mean(axis=0)
    values = {
        "samples_to_target": np.exp(np.median(logs, axis=0)),
        "samples_lo": np.exp(lo),
        "samples_hi": np.exp(hi),
    }
    answer = {name: np.where(known, column, np.nan) for name, column in values.items()}
    answer["probability_of_reaching"] = reaching
    return pd.DataFrame({**answer, "support": support}, index=frame.index)

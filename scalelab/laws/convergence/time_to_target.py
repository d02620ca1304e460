"""Time to target: the product of the two laws, and the error of that product.

::

    time = samples to target(global batch, rule) / global batch * step time(allocation)

Trials of kind ``end_to_end`` measure the left side. The difference between the logs of
their times and of the product is the error of the factorisation: its mean corrects
every prediction, and its spread is part of the interval. The prior of the correction is
zero, with a standard deviation of 10%.

References
----------
Coleman et al. 2019, *Analysis of DAWNBench*, section 3 (time to accuracy as a product);
McCandlish et al. 2018, *An empirical model of large-batch training*, section 2.3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.outcome import Support
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.rows import (
    ended_well,
    has_sharded_order,
    is_equal,
)
from scalelab.laws.interval import SEED, normals
from scalelab.laws.rows import (
    Observed,
    checked_configurations,
    configurations,
    curve_columns,
    numbers,
    prepared,
    strategies,
)
from scalelab.laws.step_time.law import StepTimeLaw

_BIAS_PRIOR = 0.1  # standard deviation of the prior of the log correction
_ROUNDS = 40
_FREEDOM = 4.0  # degrees of freedom of Student's t: an outlier counts for little
_USUAL_SPREAD, _USUAL_WEIGHT = 0.05, 3.0  # prior of the spread; its weight in trials
Law = TypeVar("Law")
Rows = TypeVar("Rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Factorisation:
    """The error of the product of the two laws, measured by end-to-end trials."""

    # One row per end-to-end trial that was compared: its configuration, ``measured_s``,
    # ``predicted_s`` and ``log_error`` (measured over predicted)
    trials: pd.DataFrame
    # The log correction of the product, and its standard deviation
    log_bias: float
    log_bias_deviation: float
    # Standard deviation of a single log error around the correction, beyond the
    # uncertainty of the two laws
    log_spread: float

    @classmethod
    def of(cls, trials: pd.DataFrame, log_variance: np.ndarray) -> Self:
        """Estimate correction and spread from compared trials."""
        error = trials["log_error"].to_numpy(float)
        usual = _USUAL_WEIGHT * _USUAL_SPREAD**2

        bias, spread = float(np.median(error)), _USUAL_SPREAD
        for _ in range(_ROUNDS):
            square = (error - bias) ** 2
            scores = square / (spread**2 + log_variance)
            trust = (_FREEDOM + 1) / (_FREEDOM + scores)
            # the spread is the scatter beyond the uncertainty of the two laws
            excess = np.maximum(trust * square - log_variance, 0).sum()
            spread = np.sqrt((excess + usual) / (len(error) + _USUAL_WEIGHT))
            weight = trust / (spread**2 + log_variance)
            precision = weight.sum() + 1 / _BIAS_PRIOR**2
            bias = float((weight * error).sum() / precision)

        return cls(
            trials=trials,
            log_bias=bias,
            log_bias_deviation=float(precision**-0.5),
            log_spread=float(spread),
        )

    def draws(self) -> np.ndarray:
        """Draw the log error of one further prediction, shape (n_draws, 1)."""
        deviation = np.hypot(self.log_bias_deviation, self.log_spread)
        return np.asarray(self.log_bias + deviation * normals(SEED + 8))

    def figures(self) -> dict[str, float]:
        """Return the relative errors of the product, and the correction of it."""
        errors = self.trials["log_error"]
        return {
            "num_trials": len(errors),
            "mean_error": float(np.expm1(errors.mean())),
            "worst_error": float(np.expm1(errors).abs().max()),
            "correction": float(np.expm1(self.log_bias)),
        }


def measured_factorisation(
    observations: Observed, step_time_law: type[StepTimeLaw] = StepTimeLaw
) -> Factorisation | None:
    """Compare the product of the two laws with end-to-end trials.

    Both laws are fitted without the end-to-end trials if the other rows suffice.
    """
    rows = prepared(observations)
    every = rows.observations
    whole = is_equal(every, "kind", "end_to_end")

    trials = _compared(every[whole])
    if trials.empty or not all(way.factorises for way in strategies(every)):
        return None

    factors = every[~whole]
    try:
        step_time = _fit_without(step_time_law.fit, rows.take(factors.index), rows)
        convergence = _fit_without(ConvergenceLaw.fit, factors, every)
        product = _log_product(step_time, convergence, trials)
    except (FitError, SpecError):  # too few other trials, or of several curves
        return None

    known = np.isfinite(product).all(axis=0)
    if not known.any():
        return None

    trials, product = trials[known].reset_index(drop=True), product[:, known]
    measured, middle = numbers(trials, "time_to_target_s"), np.median(product, axis=0)
    names = [n for n in ("world_size", "num_nodes") if n in trials.columns]
    table = trials[[*names, "global_batch_size"]].assign(
        measured_s=measured,
        predicted_s=np.exp(middle),
        log_error=np.log(measured) - middle,
    )
    return Factorisation.of(table, product.var(axis=0))


def _log_product(
    step_time: StepTimeLaw, convergence: ConvergenceLaw, trials: pd.DataFrame
) -> np.ndarray:
    """Draw log times of trials, (n_draws, n_trials); NaN where a law has no support."""
    total = checked_configurations(trials)["global_batch_size"]
    frame = trials.assign(global_batch_size=total)
    in_keys = {name for key in step_time.curves for name, _ in key}
    asked = frame.drop(columns=[n for n in curve_columns(frame) if n not in in_keys])
    draws = np.log(step_time.draws(asked, one_run=True))
    batch = numbers(frame, "global_batch_size")
    norm = numbers(frame, "normalization_batch_size")

    unknown = step_time.predict(asked)["support"].to_numpy() == Support.NOT_MEASURED
    for key, part in convergence.split(frame).items():
        at = part.index.to_numpy()
        curve = convergence.curves[convergence.curve_of(key)]
        unknown[at] |= curve.support(batch[at]) == Support.NOT_MEASURED
        draws[:, at] += np.log(convergence.draws(key, batch[at], norm[at]))

    return np.where(unknown, np.nan, draws - np.log(batch))


def _compared(trials: pd.DataFrame) -> pd.DataFrame:
    values = configurations(trials)
    values["time_to_target_s"] = numbers(trials, "time_to_target_s")
    rows = pd.concat([trials[curve_columns(trials)], values], axis=1)
    has_all = ((values > 0) & (values < np.inf)).all(axis=1) & ~rows.duplicated()
    is_fit = ended_well(trials) & ~has_sharded_order(trials) & has_all.to_numpy()
    order = np.lexsort(values.to_numpy(float).T)
    chosen: pd.DataFrame = trials.iloc[order[is_fit[order]]]
    return chosen.reset_index(drop=True)


def _fit_without(fit: Callable[[Rows], Law], factors: Rows, everything: Rows) -> Law:
    try:
        return fit(factors)
    except FitError:
        return fit(everything)

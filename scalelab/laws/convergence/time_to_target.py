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

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.errors import FitError, SpecError
from scalelab.inputs.numerals import counted
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.rows import (
    ended_well,
    has_sharded_order,
    split_targets,
    told_apart,
)
from scalelab.laws.input_checks import checked_configurations
from scalelab.laws.interval import NUM_DRAWS, SEED, central, check_mass
from scalelab.laws.rows import (
    Observed,
    cells,
    configurations,
    curve_columns,
    numbers,
    prepared,
    strategies,
)
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Support

_KIND = "end_to_end"
_BIAS_PRIOR = 0.1  # standard deviation of the prior of the log correction
_ROUNDS = 40
_FREEDOM = 4.0  # degrees of freedom of Student's t: an outlier counts for little
_USUAL_SPREAD, _USUAL_WEIGHT = 0.05, 3.0  # prior of the spread; its weight in trials
Law = TypeVar("Law")
Rows = TypeVar("Rows")
_ORDER = (Support.MEASURED, Support.INTERPOLATED, Support.EXTRAPOLATED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Factorisation:
    """The error of the product of the two laws, measured by end-to-end trials.

    Parameters
    ----------
    trials
        One row per end-to-end trial that was compared: its configuration,
        ``measured_s``, ``predicted_s`` and ``log_error`` (measured over predicted).
    log_bias, log_bias_deviation
        The log correction of the product, and its standard deviation.
    log_spread
        Standard deviation of a single log error around the correction, beyond the
        uncertainty of the two laws.
    """

    trials: pd.DataFrame
    log_bias: float
    log_bias_deviation: float
    log_spread: float

    @classmethod
    def of(cls, trials: pd.DataFrame, log_variance: np.ndarray) -> Factorisation:
        """Estimate correction and spread from compared trials.

        Parameters
        ----------
        trials
            The compared trials, see the attribute.
        log_variance : ndarray, shape (n_trials,)
            Variance of the log product according to the two laws.
        """
        error = trials["log_error"].to_numpy(float)
        usual = _USUAL_WEIGHT * _USUAL_SPREAD**2
        bias, spread = float(np.median(error)) if len(error) else 0.0, _USUAL_SPREAD
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
        order = np.random.default_rng(SEED + 8).permutation(NUM_DRAWS)
        normal = ndtri((order + 0.5) / NUM_DRAWS)[:, None]
        return np.asarray(
            self.log_bias + np.hypot(self.log_bias_deviation, self.log_spread) * normal
        )

    def describe(self) -> str:
        """Return a sentence on the error of the product."""
        if self.trials.empty:
            return "No end-to-end trial checked the product of the two laws."
        count, bias = len(self.trials), 100 * np.expm1(self.trials["log_error"].mean())
        worst = 100 * np.expm1(self.trials["log_error"]).abs().max()
        return (
            f"{counted(count, 'end-to-end trial')} took {bias:+.0f}% against the "
            f"product of the two laws, {worst:.0f}% off at most; predictions are "
            f"corrected by {100 * np.expm1(self.log_bias):+.0f}%."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToTargetLaw:
    """The step-time law times the convergence law, and the error of their product.

    Parameters
    ----------
    step_time, convergence
        The two laws, fitted without the end-to-end trials if the other rows suffice.
    factorisation
        The error of their product.
    """

    step_time: StepTimeLaw
    convergence: ConvergenceLaw
    factorisation: Factorisation

    @classmethod
    def fit(
        cls, observations: Observed, step_time_law: type[StepTimeLaw] = StepTimeLaw
    ) -> TimeToTargetLaw:
        """Fit both laws, and compare their product with end-to-end trials.

        Parameters
        ----------
        observations
            Rows of the observations frame: throughput and convergence trials, and
            end-to-end trials (``kind`` and ``time_to_target_s``) where there are any.
            End-to-end trials that ``validity`` marks, or that did not complete, are
            not compared; one that is given twice counts once.
        step_time_law
            :class:`StepTimeLaw` or one of :data:`scalelab.laws.rivals.laws.LAWS`.

        Raises
        ------
        FitError
            A law cannot be fitted, or convergence depends on the number of workers.
        """
        rows = prepared(observations)
        every = rows.observations
        _refuse_stale(every)
        whole = _end_to_end(every)
        factors = every[~whole]
        law = cls(
            step_time=_fit_without(step_time_law.fit, rows.take(factors.index), rows),
            convergence=_fit_without(ConvergenceLaw.fit, factors, every),
            factorisation=Factorisation.of(_no_trials(), np.empty(0)),
        )
        compared = _compared(every[whole])
        if compared.empty:
            return law
        return cls(
            step_time=law.step_time,
            convergence=law.convergence,
            factorisation=law._compare(compared),
        )

    def _compare(self, trials: pd.DataFrame) -> Factorisation:
        product, support = self._log_product(trials)
        known = support != Support.NOT_MEASURED
        logs = product[:, known]
        measured = numbers(trials, "time_to_target_s")[known]
        middle = np.median(logs, axis=0)
        names = [n for n in ("world_size", "num_nodes") if n in trials.columns]
        table = trials.loc[known, [*names, "global_batch_size"]].assign(
            measured_s=measured,
            predicted_s=np.exp(middle),
            log_error=np.log(measured) - middle,
        )
        return Factorisation.of(table.reset_index(drop=True), logs.var(axis=0))

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the training time of one further run, until it reaches its target.

        Parameters
        ----------
        configurations
            As both laws ask for them; optionally ``budget_samples``.
        interval
            Probability mass of the interval, in (0, 1).

        Returns
        -------
        DataFrame
            The configurations' columns, ``time_to_target_s``,
            ``time_to_target_lo_s``, ``time_to_target_hi_s``,
            ``probability_of_reaching`` and ``support``, the weaker of the two laws'.

        Raises
        ------
        NotIdentifiableError
            Every configuration needs a parameter that the throughput trials, or the
            convergence trials, do not determine.
        SpecError
            No run could have one of the configurations, or it may belong to several
            curves.
        """
        check_mass(interval)
        frame = configurations.reset_index(drop=True)
        product, support = self._log_product(frame)
        draws = product + self.factorisation.draws()
        known = support != Support.NOT_MEASURED
        ends = np.full((3, len(frame)), np.nan)
        if known.any():
            lo, hi = central(draws[:, known], interval)
            ends[:, known] = [np.median(draws[:, known], axis=0), lo, hi]
        reaching = self.convergence.predict(_with_batch(frame), interval)
        names = ("time_to_target_s", "time_to_target_lo_s", "time_to_target_hi_s")
        return configurations.assign(
            **dict(zip(names, np.exp(ends), strict=True)),
            probability_of_reaching=reaching["probability_of_reaching"].to_numpy(),
            support=support,
        )

    def _log_product(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Draw log times without the error of the product; return them and support."""
        frame = _with_batch(frame)
        asked = _key_columns(self.step_time, frame)
        steps = self.step_time.predict(asked)["support"].to_numpy(str)
        draws = np.log(self.step_time.sample(asked, one_run=True))
        needs = self.convergence.support(frame)
        batch = numbers(frame, "global_batch_size")
        norm = numbers(frame, "normalization_batch_size")
        for key, part in split_targets(told_apart(frame)).items():
            at = part.index.to_numpy()
            draws[:, at] += np.log(self.convergence.sample(key, batch[at], norm[at]))
        return draws - np.log(batch), _weaker(steps, needs)


def measured_factorisation(
    observations: Observed, step_time_law: type[StepTimeLaw] = StepTimeLaw
) -> Factorisation | None:
    """Return the error of the product; None where no trial measured it.

    Parameters
    ----------
    observations
        Rows of the observations frame, of one target and rule or with the columns that
        tell them apart.
    step_time_law
        As for :meth:`TimeToTargetLaw.fit`.
    """
    rows = prepared(observations)
    times = numbers(rows.observations, "time_to_target_s")
    if not (_end_to_end(rows.observations) & (times > 0)).any():
        return None
    try:
        found = TimeToTargetLaw.fit(rows, step_time_law).factorisation
    except (FitError, SpecError):  # stale weights, or too few other trials
        return None
    return None if found.trials.empty else found


def _compared(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials to compare with the product, each once, in a fixed order."""
    values = configurations(trials)
    values["time_to_target_s"] = numbers(trials, "time_to_target_s")
    numeric = values.to_numpy(float)
    rows = pd.concat([trials[curve_columns(trials)], values], axis=1)
    marks = zip(cells(trials, "validity"), cells(trials, "outcome"), strict=True)
    is_fit = np.array([ended_well(*pair) for pair in marks], dtype=bool)
    is_fit &= ~has_sharded_order(trials)
    is_fit &= (np.isfinite(numeric) & (numeric > 0)).all(axis=1)
    is_fit &= ~rows.duplicated().to_numpy(bool)
    order = np.lexsort(numeric.T)
    chosen: pd.DataFrame = trials.iloc[order[is_fit[order]]]
    return chosen.reset_index(drop=True)


def _with_batch(frame: pd.DataFrame) -> pd.DataFrame:
    total = checked_configurations(frame)["global_batch_size"]
    return frame.assign(global_batch_size=total)


def _key_columns(law: StepTimeLaw, frame: pd.DataFrame) -> pd.DataFrame:
    """Drop the curve columns that no curve of the law has in its key."""
    known = {name for key in law.curves for name, _ in key}
    return frame.drop(columns=[n for n in curve_columns(frame) if n not in known])


def _weaker(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    rank = {str(kind): place for place, kind in enumerate(_ORDER)}
    pairs = zip(first, second, strict=True)
    weaker = [max(pair, key=lambda kind: rank.get(kind, len(rank))) for pair in pairs]
    return np.array(weaker, dtype=object)


def _fit_without(fit: Callable[[Rows], Law], factors: Rows, everything: Rows) -> Law:
    """Fit without the end-to-end trials, or with them if the others do not suffice."""
    try:
        return fit(factors)
    except FitError:
        return fit(everything)


def _end_to_end(observations: pd.DataFrame) -> np.ndarray:
    if "kind" not in observations.columns:
        return np.zeros(len(observations), dtype=bool)
    return (observations["kind"] == _KIND).fillna(False).to_numpy(bool)


def _no_trials() -> pd.DataFrame:
    return pd.DataFrame({"measured_s": [], "predicted_s": [], "log_error": []})


def _refuse_stale(observations: pd.DataFrame) -> None:
    ways = strategies(observations)
    stale = sorted({each.name for each in ways if not each.factorises})
    if stale:
        raise FitError(
            f"parallelism={stale[0]} does not take every step from the same weights: "
            "samples to target depend on the number of workers, and time does not "
            "factorise. Measure end-to-end trials at each number of workers asked for."
        )

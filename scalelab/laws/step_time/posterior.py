"""Posterior of the physical parameters of one curve, by a Markov chain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from scalelab.laws.interval import NUM_WALKERS, SEED, sample
from scalelab.laws.step_time import ring_prior
from scalelab.laws.step_time.physics import (
    NAMES,
    NEUTRAL,
    NUM_TIMES,
    UPPER,
    ExchangeForm,
    step_time_s,
)
from scalelab.laws.step_time.points import Points

# overlap and imbalance may be exactly zero: values below zero stand for zero
_LOWER = np.array([0.0] * NUM_TIMES + [-0.15, 0.3, -0.03])
_MIN_BATCHES_FOR_EXPONENT = 4
_MIN_BATCH_RANGE_FOR_EXPONENT = 4.0
_FREEDOM = 4.0  # degrees of freedom of Student's t: an outlier counts for little
_NORMAL_EQUIVALENT = 1.2  # normal deviation whose 80% interval is that of t's scale 1
_USUAL_FORM_ERROR, _FORM_ERROR_SPREAD = 0.02, 1.0
_LARGEST_FORM_ERROR = 1.0
_SMALLEST_MISFIT = 0.002  # a smaller one is chance: few points, many parameters
_NUM_STEPS, _NUM_STEPS_MANY_POINTS, _MANY_POINTS = 300, 150, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RingPosterior:
    """Draws of a curve's parameters, in the units of its points.

    Parameters
    ----------
    form
        How links join into an exchange.
    parameters : ndarray, shape (n_draws, 9)
    log_likelihood
        Log likelihood of the points, mean over the draws.
    form_error
        Standard deviation of log step time that the physics does not explain.
    active
        Names of the parameters that the points determine in part; the others have a
        neutral value.
    """

    form: ExchangeForm
    parameters: np.ndarray
    log_likelihood: float
    form_error: float
    active: frozenset[str]


def fit(points: Points, form: ExchangeForm) -> RingPosterior:
    """Draw the parameters of a curve from their posterior.

    Errors are relative and follow Student's t with 4 degrees of freedom, so that an
    outlier counts for little; a point weighs by its number of repeats.
    """
    active = active_parameters(points)
    free = np.array([name in active for name in NAMES])
    best = _least_squares(points, free, form)
    start = _population(points, free, best, form)

    def log_density(positions: np.ndarray) -> np.ndarray:
        outside, legal = _legal(positions, free)
        likelihood = _log_likelihood(legal, positions[:, -1], points, form)
        prior = (positions[:, -1] - np.log(_USUAL_FORM_ERROR)) / _FORM_ERROR_SPREAD
        density = likelihood + ring_prior.log_density(legal) - 0.5 * prior**2
        return np.where(outside, -np.inf, density)

    many = len(points) > _MANY_POINTS
    draws = sample(log_density, start, _NUM_STEPS_MANY_POINTS if many else _NUM_STEPS)
    parameters = _full(draws[:, :-1], free)
    likelihood = _log_likelihood(parameters, draws[:, -1], points, form)
    return RingPosterior(
        form=form,
        parameters=parameters,
        log_likelihood=float(likelihood.mean()),
        form_error=_NORMAL_EQUIVALENT * float(np.exp(np.median(draws[:, -1]))),
        active=active,
    )


def active_parameters(points: Points) -> frozenset[str]:
    """Return the parameters on which the step times of the points depend."""
    at = points.at
    batches = np.unique(at.samples)
    active = {"compute_per_sample"}
    if len(batches) > 1:
        active |= {"compute_fixed"}
    if (
        len(batches) >= _MIN_BATCHES_FOR_EXPONENT
        and batches[-1] / batches[0] >= _MIN_BATCH_RANGE_FOR_EXPONENT
    ):
        active |= {"compute_exponent"}
    if np.any((at.num_nodes == 1) & (at.world_size > 1)):
        active |= {"intra_node_latency", "intra_node_transfer", "overlap"}
    if at.world_size.min() == 1 and at.world_size.max() > 1:
        active |= {"imbalance"}
    if np.any(at.num_nodes > 1):
        active |= {"inter_node_latency", "inter_node_transfer", "overlap"}
    return frozenset(active)


def _full(free_values: np.ndarray, free: np.ndarray) -> np.ndarray:
    parameters = np.tile(NEUTRAL, (len(free_values), 1))
    parameters[:, free] = free_values
    return np.asarray(np.maximum(parameters, 0.0))


def _least_squares(points: Points, free: np.ndarray, form: ExchangeForm) -> np.ndarray:
    """Return the free parameters with the least robust error of log time."""
    time = np.exp(points.log_time)
    features = points.at.features(form) * free[:NUM_TIMES]
    ridge = 1e-3 * np.eye(NUM_TIMES)
    system = np.vstack([features / time[:, None], ridge])
    linear = nnls(system, np.append(np.ones(len(time)), np.zeros(NUM_TIMES)))[0]
    weights = np.sqrt(points.num_repeats)
    lower, upper = _LOWER[free], UPPER[free]

    def residuals(values: np.ndarray) -> np.ndarray:
        predicted = np.log(step_time_s(_full(values[None], free), points.at, form)[0])
        misfit = weights * (predicted - points.log_time) / 0.03
        return np.append(misfit, 0.03 * values)

    def jacobian(values: np.ndarray) -> np.ndarray:
        slopes = _log_slopes(values, points, free, form) * weights / 0.03
        return np.vstack([slopes.T, 0.03 * np.eye(len(values))])

    fits = []
    for overlap in (0.1, 0.6):
        guess = np.append(linear + 1e-3, [overlap, 1.0, 0.01])[free]
        guess = np.clip(guess, lower + 1e-6, upper - 1e-6)
        fits.append(
            least_squares(
                residuals,
                guess,
                jac=jacobian,
                bounds=(lower, upper),
                loss="soft_l1",
                max_nfev=60,
            )
        )
    return np.asarray(min(fits, key=lambda result: result.cost).x)


def _log_slopes(
    values: np.ndarray, points: Points, free: np.ndarray, form: ExchangeForm
) -> np.ndarray:
    """Return d log time / d free parameter, shape (n_free, n_points)."""
    step = 1e-4 * np.maximum(np.abs(values), 1e-2)
    # forward from inside the bounds: both ends must be legal parameters
    inner = np.minimum(values, UPPER[free] - step)
    ends = _full(np.vstack([inner, inner + np.diag(step)]), free)
    logs = np.log(step_time_s(ends, points.at, form))
    return np.asarray((logs[1:] - logs[0]) / step[:, None])


def _population(
    points: Points, free: np.ndarray, best: np.ndarray, form: ExchangeForm
) -> np.ndarray:
    """Draw the initial population around the least-squares optimum.

    Its spread follows from the curvature and the misfit there. A population wider than
    the posterior would not converge within the steps of the chain, and its width would
    be taken for uncertainty.
    """
    lower, upper = _LOWER[free], UPPER[free]
    slopes = _log_slopes(best, points, free, form)
    misfit = _misfit(points, free, best, form)
    precision = slopes @ slopes.T / misfit**2
    precision += np.diag(1 / np.maximum(best, 0.05) ** 2)
    scatter = np.linalg.cholesky(np.linalg.inv(precision))
    rng = np.random.default_rng(SEED)
    positions = best + rng.standard_normal((NUM_WALKERS, len(best))) @ scatter.T
    positions = np.clip(lower + np.abs(positions - lower), lower, upper - 1e-6)
    form_error = rng.normal(np.log(misfit), 0.5, NUM_WALKERS)
    return np.column_stack([positions, np.minimum(form_error, -0.1)])


def _misfit(
    points: Points, free: np.ndarray, best: np.ndarray, form: ExchangeForm
) -> float:
    """Return the standard deviation of log step time around a fit.

    With no more points than parameters it is the usual one.
    """
    num_spare = len(points) - len(best)
    if num_spare < 1:
        return _USUAL_FORM_ERROR
    predicted = np.log(step_time_s(_full(best[None], free), points.at, form)[0])
    squares = float(((predicted - points.log_time) ** 2).sum())
    spread = math.sqrt(squares / num_spare)
    return min(max(spread, _SMALLEST_MISFIT), _USUAL_FORM_ERROR)


def _legal(positions: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which positions lie outside the bounds, and all of them clipped."""
    values = positions[:, :-1]
    outside = np.any((values < _LOWER[free]) | (values > UPPER[free]), axis=1)
    outside |= positions[:, -1] > np.log(_LARGEST_FORM_ERROR)
    return outside, _full(np.clip(values, _LOWER[free], UPPER[free]), free)


def _log_likelihood(
    parameters: np.ndarray,
    log_form_error: np.ndarray,
    points: Points,
    form: ExchangeForm,
) -> np.ndarray:
    misfit = np.log(step_time_s(parameters, points.at, form)) - points.log_time
    variance = np.exp(2 * np.clip(log_form_error, -20, 0))[:, None]
    variance = variance + points.scatter.spreads**2 / points.num_repeats
    terms = -0.5 * np.log(variance) - 0.5 * (_FREEDOM + 1) * np.log1p(
        misfit**2 / (_FREEDOM * variance)
    )
    return np.asarray(terms.sum(axis=1))

"""Adaptive importance sampling: draws from a density of a few dimensions.

For the same cost its draws are more accurate than those of a Markov chain, which has to
discard its beginning. The proposal of each round is a multivariate t that is fitted to
the weighted draws of the previous round, mixed with a wider one.

References
----------
Cappe et al. 2008, *Adaptive importance sampling in general mixture classes*,
Statistics and Computing 18.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from scalelab.laws.interval import NUM_DRAWS

_SMALL, _LARGE = 1200, 3000  # draws of a round that approaches, and of the last one
_MOST_ROUNDS = 10
_FREEDOM = 5.0
_WIDE_SHARE, _WIDE_SCALE = 0.2, 2.5
_LEAST_EFFECTIVE = 120.0
_RIDGE = 1e-9

LogDensity = Callable[[np.ndarray], np.ndarray]


def draw(
    log_density: LogDensity,
    first: np.ndarray,
    log_first: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw from a density by adaptive importance sampling.

    Parameters
    ----------
    log_density
        Maps positions of shape (n, d) to log densities of shape (n,).
    first : ndarray, shape (n_first, d)
        First draws; they must cover the region of the density.
    log_first : ndarray, shape (n_first,)
        Log of the density from which they were drawn.
    rng
        Generator of random numbers.

    Returns
    -------
    ndarray, shape (NUM_DRAWS, d)
        Draws of equal weight, sorted by their first column.
    """
    positions, log_weights = first, log_density(first) - log_first
    power = 0.0
    for _ in range(_MOST_ROUNDS):
        was_there, (mean, root, power) = power == 1, _moments(positions, log_weights)
        is_last = was_there and power == 1
        positions = _propose(mean, root, _LARGE if is_last else _SMALL, rng)
        log_weights = log_density(positions) - _log_proposal(positions, mean, root)
        if is_last:
            break
    order = positions[:, 0].argsort(kind="stable")
    weights = np.exp(log_weights[order] - log_weights.max())
    cumulated = np.cumsum(weights)
    places = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS * cumulated[-1]
    return np.asarray(positions[order][np.searchsorted(cumulated, places)])


def _moments(
    positions: np.ndarray, log_weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean, Cholesky root and tempering power of the weighted draws.

    If a few draws have nearly all the weight, weights are raised to a power below 1.
    """
    logs, power = log_weights - log_weights.max(), 1.0
    while True:
        weights = np.exp(power * logs)
        weights /= weights.sum()
        if 1 / (weights**2).sum() >= _LEAST_EFFECTIVE or power < 1e-3:
            break
        power *= 0.7
    mean = weights @ positions
    away = positions - mean
    covariance = (weights[:, None] * away).T @ away
    covariance += _RIDGE * np.eye(len(mean))
    return mean, np.linalg.cholesky(covariance), power


def _propose(
    mean: np.ndarray, root: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    half = rng.standard_normal((count // 2, len(mean)))
    scale = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, count // 2))
    wide = rng.random(count // 2) < _WIDE_SHARE
    half *= (scale * np.where(wide, _WIDE_SCALE, 1.0))[:, None]
    # pairs of opposite draws around the mean, whose errors cancel
    return np.asarray(mean + np.concatenate([half, -half]) @ root.T)


def _log_proposal(
    positions: np.ndarray, mean: np.ndarray, root: np.ndarray
) -> np.ndarray:
    d = len(mean)
    square = (np.linalg.solve(root, (positions - mean).T) ** 2).sum(axis=0)
    constant = gammaln((_FREEDOM + d) / 2) - gammaln(_FREEDOM / 2)
    constant -= 0.5 * d * np.log(_FREEDOM * np.pi) + np.log(np.diag(root)).sum()
    parts = []
    for share, scale in ((1 - _WIDE_SHARE, 1.0), (_WIDE_SHARE, _WIDE_SCALE)):
        tail = -0.5 * (_FREEDOM + d) * np.log1p(square / scale**2 / _FREEDOM)
        parts.append(np.log(share) - d * np.log(scale) + tail)
    return np.asarray(constant + np.logaddexp(*parts))

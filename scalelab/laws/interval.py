"""A Markov chain that draws the parameters of a law, and intervals of such draws.

The chain is a differential-evolution chain: its proposals follow the shape of a
population of draws, because the parameters of a law are strongly correlated. Every
random generator is seeded, so that equal rows give equal answers.

References
----------
ter Braak 2006, *A Markov chain Monte Carlo version of the genetic algorithm
differential evolution*, Statistics and Computing 16.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalelab.errors import SpecError

SEED = 20210714
NUM_WALKERS = 40
NUM_DRAWS = 400
_STRETCH = 2.38
_JUMP_EVERY = 8
_ZERO_TOLERANCE = 0.1

LogDensity = Callable[[np.ndarray], np.ndarray]


def check_mass(interval: float) -> None:
    """Check the probability mass of an interval.

    Raises
    ------
    SpecError
        The mass does not lie between 0 and 1.
    """
    if not 0 < interval < 1:
        raise SpecError(f"interval={interval} must lie between 0 and 1, e.g. 0.8.")


def central(draws: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the central interval of draws along their first axis.

    Parameters
    ----------
    draws : ndarray, shape (n_draws, ...)
    mass
        Probability inside, in (0, 1).
    """
    lo, hi = np.quantile(draws, [(1 - mass) / 2, (1 + mass) / 2], axis=0)
    return lo, hi


def shortest_positive(draws: np.ndarray, mass: float) -> tuple[float, float]:
    """Return the shortest interval that holds a mass of non-negative draws.

    Where many draws are near zero the interval starts at exactly zero: rows that cannot
    tell a term from zero must not claim a positive lower end.

    Parameters
    ----------
    draws : ndarray, shape (n_draws,)
    mass
        Probability inside, in (0, 1).
    """
    ordered = np.sort(draws)
    inside = int(np.ceil(mass * len(ordered)))
    starts = ordered[: len(ordered) - inside + 1]
    widths = ordered[inside - 1 :] - starts
    first = int(np.argmin(widths))
    from_zero = ordered[inside - 1]
    if from_zero <= widths[first] * (1 + _ZERO_TOLERANCE):
        return 0.0, float(from_zero)
    return float(starts[first]), float(ordered[first + inside - 1])


def sample(log_density: LogDensity, start: np.ndarray, num_steps: int) -> np.ndarray:
    """Draw from a density by a differential-evolution Markov chain.

    Parameters
    ----------
    log_density
        Maps positions of shape (n, d) to log densities of shape (n,); -inf outside of
        the support.
    start : ndarray, shape (n_walkers, d)
        Initial population inside the support; the number of walkers is even.
    num_steps
        Number of updates of the whole population; the first half is discarded.

    Returns
    -------
    ndarray, shape (NUM_DRAWS, d)
    """
    rng = np.random.default_rng(SEED)
    population = start.copy()
    density = log_density(population)
    half = len(start) // 2
    halves = (slice(0, half), slice(half, None))
    kept = []
    for step in range(num_steps):
        for active, other in (halves, halves[::-1]):
            proposal = _propose(population[active], population[other], step, rng)
            proposed = log_density(proposal)
            accept = np.log(rng.random(half)) < proposed - density[active]
            population[active] = np.where(accept[:, None], proposal, population[active])
            density[active] = np.where(accept, proposed, density[active])
        if step >= num_steps // 2:
            kept.append(population.copy())
    chain = np.concatenate(kept)
    chosen = np.linspace(0, len(chain) - 1, NUM_DRAWS).astype(int)
    return np.asarray(chain[chosen])


def _propose(
    active: np.ndarray, other: np.ndarray, step: int, rng: np.random.Generator
) -> np.ndarray:
    size, dimension = active.shape
    first = rng.integers(0, len(other), size)
    second = (first + rng.integers(1, len(other), size)) % len(other)
    # a full difference every eighth step lets walkers move between separate modes
    stretch = 1.0 if step % _JUMP_EVERY == 0 else _STRETCH / np.sqrt(2 * dimension)
    jitter = 1e-4 * np.abs(other).mean(axis=0) * rng.standard_normal(active.shape)
    return np.asarray(active + stretch * (other[first] - other[second]) + jitter)

"""Intervals of draws; how many draws a law makes, and with which seed.

Every random generator is seeded, so that equal rows give equal answers.
"""

from functools import cache

import numpy as np
from scipy.special import ndtri

from scalelab.errors import SpecError

SEED = 20210714
NUM_DRAWS = 400
_ZERO_TOLERANCE = 0.1


def check_mass(interval: float) -> None:
    """Check the probability mass of an interval."""
    if not 0 < interval < 1:
        raise SpecError(
            f"interval={interval} must lie between 0 and 1, e.g. 0.8.",
            code="not_a_share",
        )


def levels(seed: int) -> np.ndarray:
    """Return draws between 0 and 1 that are evenly spaced, in some order.

    Returns
    -------
    ndarray, shape (n_draws,)
    """
    return (np.random.default_rng(seed).permutation(NUM_DRAWS) + 0.5) / NUM_DRAWS


@cache
def normals(seed: int, columns: int = 1) -> np.ndarray:
    """Return standard normal draws whose every column has exact quantiles.

    So their quantiles are more exact than those of independent draws. They are kept,
    and not to be written to.

    Returns
    -------
    ndarray, shape (n_draws, columns)
    """
    rng = np.random.default_rng(seed)
    levels = ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS)
    drawn = np.column_stack([rng.permutation(levels) for _ in range(columns)])
    drawn.flags.writeable = False
    return drawn


def substreams(seed: int, labels: np.ndarray) -> np.ndarray:
    """Return standard normal draws for each label, shape (n_draws, n_labels).

    They depend on the label alone: a row of numbers that are not negative.
    """
    whole = np.round(1e6 * labels).astype(int)
    distinct, places = np.unique(whole, axis=0, return_inverse=True)
    drawn = [
        np.random.default_rng([seed, *label]).standard_normal(NUM_DRAWS)
        for label in distinct.tolist()
    ]
    return np.reshape(drawn, (len(distinct), NUM_DRAWS)).T[:, places.ravel()]


def central(draws: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the central interval of draws along their first axis."""
    lo, hi = np.quantile(draws, [(1 - mass) / 2, (1 + mass) / 2], axis=0)
    return lo, hi


def shortest_positive(draws: np.ndarray, mass: float) -> tuple[float, float]:
    """Return the shortest interval that holds a mass of non-negative draws.

    Where many draws are near zero the interval starts at exactly zero: rows that cannot
    tell a term from zero must not claim a positive lower end.
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

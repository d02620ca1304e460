"""The prior of the physical parameters of a curve, as a log density."""

from __future__ import annotations

import numpy as np

from scalelab.laws.step_time.physics import NUM_TIMES

# scales of Cauchy distributions, in units of the typical pass of the curve
_SCALES = np.array([0.3, 1.0, 0.002, 0.2, 0.002, 0.5])
_IMBALANCE_SCALE = 0.03
_EXPONENT_SPREAD = 0.1


def log_density(parameters: np.ndarray) -> np.ndarray:
    """Return log densities up to a constant, shape (n_draws,).

    Parameters
    ----------
    parameters : ndarray, shape (n_draws, 9)
        In the order of :data:`scalelab.laws.step_time.physics.NAMES`.
    """
    times = np.maximum(parameters[:, :NUM_TIMES], 1e-12)
    density = -np.log1p((times / _SCALES) ** 2).sum(axis=1)
    exponent = (parameters[:, 7] - 1) / _EXPONENT_SPREAD
    imbalance = np.log1p((parameters[:, 8] / _IMBALANCE_SCALE) ** 2)
    # rows that tell only (1 - overlap) * transfer leave an overlap of zero plausible
    overlap = 2 * np.log1p(-parameters[:, 6])
    return np.asarray(density - 0.5 * exponent**2 - imbalance + overlap)

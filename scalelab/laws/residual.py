"""What the physics leaves over, carried to nearby configurations and no further.

The leftover is a Gaussian process over log devices, log local batch, accumulation and
node boundary. Near a measured point it follows the measurement; a few doublings away
it is zero with the full form error: it can never move an extrapolation.

References
----------
Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, equations
2.23 and 2.24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.laws.physics import Configurations
from scalelab.laws.points import Points

_LENGTH = np.log(2.0)
_NODE_BOUNDARY = 2.0  # lengths between equal device counts on one and on several nodes
_SMOOTH_SHARE = 0.5  # of the variance; the rest belongs to single configurations
_LARGEST_RESIDUAL = (
    3.0  # standard deviations; beyond, a point is odd and is not followed
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """A Gaussian process conditioned on the residuals of a curve's points."""

    points: Points
    form_error: float
    inverse: np.ndarray

    @classmethod
    def of(cls, points: Points, form_error: float) -> Residual:
        """Condition on the points; ``form_error`` is the process' deviation."""
        covariance = _kernel(points.at, points.at, form_error)
        noise = points.spread**2 / points.num_repeats + 1e-8
        inverse = np.linalg.inv(covariance + np.diag(noise))
        return cls(points=points, form_error=form_error, inverse=inverse)

    def condition(
        self, residuals: np.ndarray, at: Configurations
    ) -> tuple[np.ndarray, np.ndarray]:
        """Carry residuals to other configurations.

        Parameters
        ----------
        residuals : ndarray, shape (n_draws, n_points)
            Log measured over predicted step time.
        at
            Where to.

        Returns
        -------
        mean : ndarray, shape (n_draws, n_configurations)
        variance : ndarray, shape (n_configurations,)
        """
        cross = _kernel(at, self.points.at, self.form_error)
        weights = cross @ self.inverse
        variance = self.form_error**2 - np.einsum("qk,qk->q", weights, cross)
        return self._clipped(residuals) @ weights.T, np.maximum(variance, 0.0)

    def covariance(self, at: Configurations) -> np.ndarray:
        """Return what stays unknown, jointly, (n_configurations, n_configurations)."""
        cross = _kernel(at, self.points.at, self.form_error)
        own = _kernel(at, at, self.form_error)
        return np.asarray(own - cross @ self.inverse @ cross.T)

    def _clipped(self, residuals: np.ndarray) -> np.ndarray:
        variance = self.form_error**2 + self.points.spread**2 / self.points.num_repeats
        limit = _LARGEST_RESIDUAL * np.sqrt(variance)
        return np.asarray(np.clip(residuals, -limit, limit))


def _kernel(rows: Configurations, columns: Configurations, scale: float) -> np.ndarray:
    first, second = _features(rows), _features(columns)
    squares = ((first[:, None, :] - second[None, :, :]) ** 2).sum(axis=2)
    same = squares < 1e-12
    return np.asarray(
        scale**2 * (_SMOOTH_SHARE * np.exp(-squares / 2) + (1 - _SMOOTH_SHARE) * same)
    )


def _features(at: Configurations) -> np.ndarray:
    logs = np.column_stack(
        [
            np.log(at.world_size),
            np.log(at.num_nodes),
            np.log(at.samples),
            np.log(at.accumulation),
        ]
    )
    boundary = _NODE_BOUNDARY * (at.num_nodes > 1)
    return np.asarray(np.column_stack([logs / _LENGTH, boundary]))

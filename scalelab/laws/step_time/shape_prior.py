"""Normal beliefs about the parameters of a shape, and how relatives change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.laws.step_time.shapes import NUM_PARAMETERS

_FREE_SCALE = 3.0  # of the log scale: other curves tell nothing about it
_OWN_AMPLITUDES = 2.0  # how many relatives the belief about amplitudes is worth


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapePrior:
    """What is believed about a curve of one shape before it is measured.

    Parameters
    ----------
    mean : ndarray, shape (13,)
        In the order of :data:`scalelab.laws.step_time.shapes.PARAMETERS`.
    covariance : ndarray, shape (13, 13)
    amplitude_mean, amplitude_spread : ndarray, shape (4,)
        Of the log standard deviations of ``discrepancy.PARTS``.
    """

    mean: np.ndarray
    covariance: np.ndarray
    amplitude_mean: np.ndarray
    amplitude_spread: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """Inverse of the covariance, shape (13, 13)."""
        return np.asarray(np.linalg.inv(self.covariance))


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What one fitted curve says about its parameters apart from the belief.

    Parameters
    ----------
    information : ndarray, shape (13, 13)
        Precision of the parameters given the curve's points alone; singular where the
        points do not bear on a parameter.
    information_vector : ndarray, shape (13,)
        Information times the best parameters.
    amplitudes : ndarray, shape (4,)
        Fitted log standard deviations of the discrepancy.
    """

    information: np.ndarray
    information_vector: np.ndarray
    amplitudes: np.ndarray


def informed(
    belief: ShapePrior, relatives: Sequence[Evidence], shared: np.ndarray
) -> ShapePrior:
    """Return the belief about one more curve of a family.

    A curve's parameters are those of its family plus its own deviation; of the variance
    of a parameter the fraction ``shared`` belongs to the family. The relatives are
    weighed by what they know: one that never left the node says nothing about nodes.

    Parameters
    ----------
    belief
        About any curve.
    relatives
        Fitted curves of the family.
    shared : ndarray, shape (13,)
        In [0, 1).

    References
    ----------
    Gelman et al. 2013, *Bayesian Data Analysis*, section 5.4 (hierarchical normal).
    """
    if not relatives:
        return belief
    ridge = 1e-6 * np.eye(NUM_PARAMETERS)
    common, own = np.sqrt(shared), np.sqrt(1 - shared)
    family = np.linalg.inv(belief.covariance * np.outer(common, common) + ridge)
    own_covariance = belief.covariance * np.outer(own, own) + ridge
    deviation = np.linalg.inv(own_covariance)
    precision, information_vector = family.copy(), family @ belief.mean
    for relative in relatives:
        gain = deviation @ np.linalg.inv(relative.information + deviation)
        precision += deviation - gain @ deviation
        information_vector += gain @ relative.information_vector
    known = np.linalg.inv(precision)
    amplitudes = np.mean([relative.amplitudes for relative in relatives], axis=0)
    weight = len(relatives) / (len(relatives) + _OWN_AMPLITUDES)
    return ShapePrior(
        mean=_without_scale(known @ information_vector),
        covariance=free_scale(known + own_covariance),
        amplitude_mean=weight * amplitudes + (1 - weight) * belief.amplitude_mean,
        amplitude_spread=belief.amplitude_spread,
    )


def free_scale(covariance: np.ndarray) -> np.ndarray:
    """Return the covariance with a log scale that nothing is known about."""
    freed = covariance.copy()
    freed[0, :] = freed[:, 0] = 0.0
    freed[0, 0] = _FREE_SCALE**2
    return freed


def _without_scale(mean: np.ndarray) -> np.ndarray:
    """Units of time are each curve's own."""
    return np.asarray(np.append(0.0, mean[1:]))

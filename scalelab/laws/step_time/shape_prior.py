"""Normal priors of the parameters of a shape, and their update by related curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalelab.laws.step_time.shapes import NUM_PARAMETERS

_FREE_SCALE = 3.0  # spread of the log scale, about which other curves say nothing
_NOTHING = 1e-9  # precision of a parameter that the points do not know
_OWN_AMPLITUDES = 2.0  # weight of the prior amplitudes, in relatives


@dataclass(frozen=True, kw_only=True)
class ShapePrior:
    """The normal prior of the parameters of one shape on a curve."""

    mean: np.ndarray
    covariance: np.ndarray
    amplitude_mean: np.ndarray
    amplitude_spread: np.ndarray

    @cached_property
    def precision(self) -> np.ndarray:
        """Inverse of the covariance, shape (14, 14)."""
        return np.asarray(np.linalg.inv(self.covariance))

    def widened(self, parameter: int, variance: float) -> ShapePrior:
        """Return the prior with another variance of a parameter, equally correlated."""
        factor = np.sqrt(variance / self.covariance[parameter, parameter])
        covariance = self.covariance.copy()
        covariance[parameter, :] *= factor
        covariance[:, parameter] *= factor
        return replace(self, covariance=covariance)

    def believing(self, parameter: int, mean: float, spread: float) -> ShapePrior:
        """Return the prior with another belief of one uncorrelated parameter."""
        means, covariance = self.mean.copy(), self.covariance.copy()
        means[parameter], covariance[parameter, parameter] = mean, spread**2
        return replace(self, mean=means, covariance=covariance)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The evidence of one curve about the parameters of a shape, without the prior.

    Parameters
    ----------
    information : ndarray, shape (14, 14)
        Precision of the parameters given the curve's points alone; singular where the
        step times of the points do not depend on a parameter.
    """

    information: np.ndarray
    information_vector: np.ndarray
    amplitudes: np.ndarray

    def moved(self, change: np.ndarray) -> Evidence:
        """Return the evidence where the parameters are larger by ``change``, (14,)."""
        moved = self.information_vector + self.information @ change
        return replace(self, information_vector=moved)

    def without(self, parameter: int) -> Evidence:
        """Return the evidence about the others, whatever the value of one is."""
        row = self.information[parameter]
        if row[parameter] < _NOTHING:
            return self
        gain = row / row[parameter]
        return replace(
            self,
            information=self.information - np.outer(row, gain),
            information_vector=self.information_vector
            - gain * self.information_vector[parameter],
        )


def informed(
    prior: ShapePrior, relatives: Sequence[Evidence], shared: np.ndarray
) -> ShapePrior:
    """Return the prior of one more curve of a family, in a hierarchical normal model.

    The parameters of a curve are those of its family plus a deviation of its own; of
    the variance of a parameter, the fraction ``shared`` belongs to the family. Each
    relative counts by its evidence: one that was measured on a single node says nothing
    about the parameters of several nodes.

    Parameters
    ----------
    shared : ndarray, shape (14,)
        Fractions in [0, 1).

    References
    ----------
    Gelman et al. 2013, *Bayesian Data Analysis*, section 5.4 (hierarchical normal).
    """
    if not relatives:
        return prior
    ridge = 1e-6 * np.eye(NUM_PARAMETERS)
    common, own = np.sqrt(shared), np.sqrt(1 - shared)
    family = np.linalg.inv(prior.covariance * np.outer(common, common) + ridge)
    own_covariance = prior.covariance * np.outer(own, own) + ridge
    deviation = np.linalg.inv(own_covariance)
    precision, information_vector = family.copy(), family @ prior.mean
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
        amplitude_mean=weight * amplitudes + (1 - weight) * prior.amplitude_mean,
        amplitude_spread=prior.amplitude_spread,
    )


def free_scale(covariance: np.ndarray) -> np.ndarray:
    """Return a covariance with a wide, independent log scale."""
    freed = covariance.copy()
    freed[0, :] = freed[:, 0] = 0.0
    freed[0, 0] = _FREE_SCALE**2
    return freed


def _without_scale(mean: np.ndarray) -> np.ndarray:
    """Return a mean with log scale zero: each curve has its own unit of time."""
    return np.asarray(np.append(0.0, mean[1:]))

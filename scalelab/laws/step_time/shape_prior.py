"""Normal priors of the parameters of a shape, and their update by related curves.

What is believed of any curve before it is measured are round numbers with their
reasons; ``docs/laws_judged.md`` says what was tried instead. A curve's own rows, and
those of its relatives, override all of this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Self

import numpy as np

from scalelab.laws.step_time.physics import NEVER
from scalelab.laws.step_time.shapes import NUM_PARAMETERS, PARAMETERS, Shape

_FREE_SCALE = 3.0  # spread of the log scale, about which other curves say nothing
_NOTHING = 1e-9  # precision of a parameter that the points do not know
_OWN_AMPLITUDES = 2.0  # weight of the prior amplitudes, in relatives
_USUAL = {
    # the unit of time of a curve is its own
    "scale": (0.0, 3.0),
    # a pass may be all fixed cost or none of it: nothing is known
    "fixed_share": (0.5, 3.5),
    # larger batches use a device a little better
    "batch_exponent": (0.95, 0.09),
    # fixed cost and arithmetic nearly add up, or the larger of the two decides
    "batch_sharpness": (-1.0, 1.0),
    # a quarter of a pass between two devices, within a factor of four
    "exchange": (-1.3, 1.1),
    # a ring is done growing after eight devices; latency and stragglers add a little
    "growth": (0.05, 0.1),
    # the slowest link decides, and links between nodes are a quarter slower or twice
    "node_jump": (0.25, 0.5),
    "growth_per_node": (0.0, 0.22),
    # congestion: 11% more for each doubling of nodes
    "growth_nodes": (0.15, 0.2),
    # that exactly two nodes are special is a quirk of a few machines, no trend of all
    "second_node": (0.0, 0.32),
    # of an exchange as long as the computation, more than half hides behind it
    "overlap": (0.0, 1.0),
    # the slowest of several devices is 3% behind, within a factor of three
    "imbalance": (-3.5, 1.2),
    # devices of a node are hardly ever in each other's way; where they are, it shows
    "contention": (-5.5, 1.7),
    # no machine's feed is met, unless rows show it: with_shared_feed
    "feed": (NEVER, 1.0),
}
"""Mean and standard deviation of each of ``PARAMETERS``."""
_OWN = {
    # the node boundary is a term of its own, and may cost a few times as much as the
    # ring in the node or hardly anything
    Shape.TIERS: {"node_jump": (0.2, 1.15)},
    Shape.ONE_RING: {},
    # what defines this shape: hardly anything is hidden
    Shape.EXPOSED: {"node_jump": (0.35, 0.6), "overlap": (-2.0, 0.5)},
}
# the discrepancy: smooth in all axes, of a batch, of a placement, of a configuration
_AMPLITUDE_MEAN = np.log([0.05, 0.04, 0.03, 0.025])
_AMPLITUDE_SPREAD = np.array([0.7, 0.8, 1.1, 0.8])


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

    def widened(self, parameter: int, variance: float) -> Self:
        """Return the prior with another variance of a parameter, equally correlated."""
        factors = np.ones(NUM_PARAMETERS)
        factors[parameter] = np.sqrt(variance / self.covariance[parameter, parameter])
        return replace(self, covariance=self.covariance * factors * factors[:, None])

    def believing(self, parameter: int, mean: float, spread: float) -> Self:
        """Return the prior with another belief of one uncorrelated parameter."""
        means, covariance = self.mean.copy(), self.covariance.copy()
        means[parameter], covariance[parameter, parameter] = mean, spread**2
        return replace(self, mean=means, covariance=covariance)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The evidence of one curve about the parameters of a shape, without the prior."""

    # shape (14, 14): precision of the parameters given the curve's points alone;
    # singular where the step times of the points do not depend on a parameter
    information: np.ndarray
    information_vector: np.ndarray
    amplitudes: np.ndarray

    def moved(self, change: np.ndarray) -> Self:
        """Return the evidence where the parameters are larger by ``change``, (14,)."""
        return replace(
            self, information_vector=self.information_vector + self.information @ change
        )

    def without(self, parameter: int) -> Self:
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
    common, individual = np.sqrt(shared), np.sqrt(1 - shared)
    own_covariance = prior.covariance * np.outer(individual, individual) + ridge
    deviation = np.linalg.inv(own_covariance)
    precision = np.linalg.inv(prior.covariance * np.outer(common, common) + ridge)

    information_vector = precision @ prior.mean
    for relative in relatives:
        gain = deviation @ np.linalg.inv(relative.information + deviation)
        precision += deviation - gain @ deviation
        information_vector += gain @ relative.information_vector

    known = np.linalg.inv(precision)
    amplitudes = np.mean([relative.amplitudes for relative in relatives], axis=0)
    weight = len(relatives) / (len(relatives) + _OWN_AMPLITUDES)

    return ShapePrior(
        # each curve has its own unit of time
        mean=np.append(0.0, (known @ information_vector)[1:]),
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


@cache
def stated_priors() -> Mapping[Shape, ShapePrior]:
    """Return the prior of each shape on any curve."""
    priors = {}
    for shape, scatter in _OWN.items():
        mean, spread = np.array([(_USUAL | scatter)[name] for name in PARAMETERS]).T
        priors[shape] = ShapePrior(
            mean=mean,
            covariance=free_scale(np.diag(spread**2)),
            amplitude_mean=_AMPLITUDE_MEAN,
            amplitude_spread=_AMPLITUDE_SPREAD,
        )
    return priors

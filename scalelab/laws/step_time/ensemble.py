"""Model averaging: the shapes fitted to one curve, weighed by their evidence.

No single shape is chosen, because the best shape on the measured points is often not
the best one beyond them. The evidence is tempered, because neighbouring points share
their errors. Where the shapes disagree, the prediction is uncertain.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import (
    LinearisedNode,
    ShapeFit,
    shared_process,
    starts,
)
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import Shape, log_time
from scalelab.laws.step_time.terms import Terms, split

_MOST_POINTS = 144
"""Points of a curve that are fitted; the time of a prediction grows with them."""
_LEAST_WEIGHT = 0.001  # of a component; rarer components change no prediction
# most configurations predicted at once, and most configurations times points: the
# arrays then fit into the cache of the processor
_BLOCK, _BLOCK_CELLS = 4000, 144_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One normal component of the predictive mixture."""

    shape: Shape
    node: LinearisedNode
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """The shapes fitted to one curve, and the discrepancy they share.

    Parameters
    ----------
    process
        The discrepancy, conditioned on the points.
    fits
        The fit of each shape.
    components_within, components_across
        The components of the predictive mixture, for configurations on one node and on
        several; their weights add up to 1.
    """

    process: DiscrepancyProcess
    fits: Mapping[Shape, ShapeFit]
    components_within: tuple[Component, ...]
    components_across: tuple[Component, ...]

    @classmethod
    def fit(cls, points: Points, priors: Mapping[Shape, ShapePrior]) -> Ensemble:
        """Fit every shape to the points of a curve."""
        points = points.fewer(_MOST_POINTS)
        leading = Shape.ONE_RING
        process = shared_process(points, priors[leading], leading)
        fits = {
            shape: max(
                (ShapeFit.fit(process, prior, shape, start) for start in starts(prior)),
                key=lambda fit: fit.log_evidence,
            )
            for shape, prior in priors.items()
        }
        return cls(
            process=process,
            fits=fits,
            components_within=_components(fits, len(points), across=False),
            components_across=_components(fits, len(points), across=True),
        )

    def mixture(self, at: Configurations) -> Mixture:
        """Return the predictive distribution of log expected times, shape (n,)."""
        most = max(len(self.components_within), len(self.components_across))
        weights, means = np.zeros((2, most, len(at.samples)))
        variances = np.ones_like(means)
        size = min(_BLOCK, _BLOCK_CELLS // len(self.process.points))
        for components, some in (
            (self.components_within, np.flatnonzero(at.num_nodes <= 1)),
            (self.components_across, np.flatnonzero(at.num_nodes > 1)),
        ):
            count = len(components)
            for block in np.array_split(some, -(-len(some) // size) or 1):
                weights[:count, block] = [[part.weight] for part in components]
                means[:count, block], variances[:count, block] = self._moments(
                    at.take(block), components
                )
        return Mixture(weights=weights, means=means, variances=variances)

    def _moments(
        self, at: Configurations, components: tuple[Component, ...]
    ) -> np.ndarray:
        """Return mean and variance by component, shape (2, n_components, n)."""
        cross = self.process.cross(at)
        carried = self.process.solve(cross.T)
        known = (cross * carried.T).sum(axis=1)
        left = np.maximum(float(self.process.variances.sum()) - known, 0.0)
        means, variances = [], []
        for component in components:
            mean, slopes = self._linear(component, at, cross, carried)
            spread = np.einsum("ij,ij->i", slopes @ component.node.covariance, slopes)
            means.append(mean)
            variances.append(spread + left)
        return np.array([means, variances])

    def draws(self, at: Configurations, normals: np.ndarray) -> np.ndarray:
        """Draw log expected times from their joint distribution, shape (n_draws, n).

        Parameters
        ----------
        at
            The configurations to predict.
        normals : ndarray, shape (n_draws, 13 + n)
            Standard normal draws.
        """
        cross = self.process.cross(at)
        carried = self.process.solve(cross.T)
        left = _root(self.process.own(at) - cross @ carried)
        count = normals.shape[1] - left.shape[0]
        draws = normals[:, count:] @ left.T
        components = self._components_of(at)
        shares = _shares([component.weight for component in components], len(normals))
        for component, share in zip(components, shares, strict=True):
            mean, slopes = self._linear(component, at, cross, carried)
            moved = normals[share, :count] @ _root(component.node.covariance).T
            draws[share] += mean + moved @ slopes.T
        return np.asarray(draws)

    def terms(self, at: Configurations) -> Terms:
        """Split the expected step time into parts, averaged over the components."""
        cross = self.process.cross(at)
        parts = []
        for component in self._components_of(at):
            part = split(component.node.parameters, at, component.shape)
            moved = np.expm1(cross @ component.node.weights)
            part = replace(part, unexplained=part.step_time_s * moved)
            parts.append((component.weight, part))
        return Terms.total(parts)

    def parameter_draws(self, normals: np.ndarray) -> list[tuple[Shape, np.ndarray]]:
        """Draw the parameters of the shapes, as many of each as its weight says.

        Parameters
        ----------
        normals : ndarray, shape (n_draws, 13)
            Standard normal draws.
        """
        components = self.components_across
        shares = _shares([component.weight for component in components], len(normals))
        return [
            (
                component.shape,
                component.node.parameters
                + normals[share] @ _root(component.node.covariance).T,
            )
            for component, share in zip(components, shares, strict=True)
        ]

    def _components_of(self, at: Configurations) -> tuple[Component, ...]:
        across = bool((at.num_nodes > 1).any())
        return self.components_across if across else self.components_within

    def _linear(
        self,
        component: Component,
        at: Configurations,
        cross: np.ndarray,
        carried: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and slopes of a component's log time, discrepancy included."""
        mean, slopes = log_time(component.node.parameters, at, component.shape)
        slopes = slopes - carried.T @ component.node.slopes
        return mean + cross @ component.node.weights, slopes


def _shares(weights: list[float], num_draws: int) -> list[slice]:
    """Return the slice of draws that belongs to each component, by its weight."""
    ends = np.cumsum([0.0, *weights]) / sum(weights) * num_draws
    bounds = np.round(ends).astype(int).tolist()
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _components(
    fits: Mapping[Shape, ShapeFit], num_points: int, *, across: bool
) -> tuple[Component, ...]:
    logs = np.array([fit.log_evidence for fit in fits.values()])
    weights = np.exp((logs - logs.max()) / np.sqrt(num_points))
    weights /= weights.sum()
    found = [
        Component(shape=fit.shape, node=node, weight=float(weight) * node.share)
        for fit, weight in zip(fits.values(), weights, strict=True)
        for node in (fit.nodes_across if across else fit.nodes)
    ]
    kept = [component for component in found if component.weight > _LEAST_WEIGHT]
    total = sum(component.weight for component in kept)
    return tuple(
        replace(component, weight=component.weight / total) for component in kept
    )


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return a square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

"""Model averaging: the shapes fitted to one curve, weighed by their evidence.

No single shape is chosen, because the best shape on the measured points is often not
the best one beyond them. The evidence is tempered, because neighbouring points share
their errors. Where the shapes disagree, the prediction is uncertain.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from scalelab.laws.step_time.machines import with_shared_feed, with_unusual_links
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import LinearisedNode, ShapeFit, shared_process
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import Shape, Terms, log_time, split

_MOST_POINTS = 144
"""Points of a curve that are fitted; the time of a prediction grows with them."""
_LEAST_WEIGHT = 0.001  # of a component; rarer components change no prediction
_BLOCK = 4000  # configurations predicted at once, which bounds the memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """The shapes fitted to one curve, and the discrepancy they share."""

    # The discrepancy, conditioned on the points
    process: DiscrepancyProcess
    # The fit of each shape
    fits: Mapping[Shape, ShapeFit]
    # The components of the predictive mixture, for configurations on one node and on
    # several; their weights add up to 1
    components_within: tuple[LinearisedNode, ...]
    components_across: tuple[LinearisedNode, ...]

    @classmethod
    def fit(cls, points: Points, priors: Mapping[Shape, ShapePrior]) -> Self:
        """Fit every shape to the points of a curve."""
        points = points.fewer(_MOST_POINTS)
        priors = {
            shape: with_shared_feed(
                points, with_unusual_links(points, prior, shape), shape
            )
            for shape, prior in priors.items()
        }

        process = shared_process(points, priors[Shape.ONE_RING], Shape.ONE_RING)
        fits = {
            shape: ShapeFit.fit(process, prior, shape)
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
        for components, some in (
            (self.components_within, np.flatnonzero(~at.crosses)),
            (self.components_across, np.flatnonzero(at.crosses)),
        ):
            count, covariance = len(components), _covariances(components)
            for block in np.array_split(some, len(some) // _BLOCK + 1):
                cross = self.process.cross(at.take(block))
                carried = self.process.inverse @ cross.T
                known = (cross * carried.T).sum(axis=1)
                before = self.process.variance(at.take(block))
                left = np.maximum(before - known, 0.0)
                mean, slopes = _linear(components, at.take(block), cross, carried)
                spreads = ((slopes @ covariance) * slopes).sum(axis=-1)
                weights[:count, block] = [[part.share] for part in components]
                means[:count, block], variances[:count, block] = mean, spreads + left

        return Mixture(weights=weights, means=means, variances=variances)

    def draws(self, at: Configurations, normals: np.ndarray) -> np.ndarray:
        """Draw log expected times from their joint distribution, shape (n_draws, n).

        The draws of a configuration depend on no other that is asked.
        """
        cross = self.process.cross(at)
        carried = self.process.inverse @ cross.T
        draws = self.process.draws(at, carried)
        components = self.components_across
        linear = zip(*_linear(components, at, cross, carried), strict=True)
        shares = _shares(components, len(normals))

        roots = _root(_covariances(components))
        for share, (mean, slopes), root in zip(shares, linear, roots, strict=True):
            draws[share] += mean + normals[share] @ root @ slopes.T

        return np.asarray(draws)

    def terms(self, at: Configurations) -> Terms:
        """Split the expected step time into parts, averaged over the components."""
        cross = self.process.cross(at)
        parts = []
        for shape, group in _by_shape(self.components_across):
            part = split(
                _stacked(component.parameters for component in group), at, shape
            )
            moved = _stacked(component.weights for component in group) @ cross.T
            part = part._replace(unexplained=part.step_time_s * np.expm1(moved))
            weights = np.array([component.share for component in group])
            parts.append([weights @ values for values in part])

        return Terms(*np.sum(parts, axis=0))

    def parameter_draws(self, normals: np.ndarray) -> dict[Shape, np.ndarray]:
        """Draw the parameters of the shapes, as many of each as its weight says."""
        components = self.components_across
        shares = _shares(components, len(normals))
        roots = _root(_covariances(components))
        drawn: dict[Shape, list[np.ndarray]] = {}
        for component, share, root in zip(components, shares, roots, strict=True):
            moved = component.parameters + normals[share] @ root
            drawn.setdefault(component.shape, []).append(moved)
        return {shape: np.concatenate(parts) for shape, parts in drawn.items()}

    def term_draws(self, at: Configurations, normals: np.ndarray) -> Terms:
        """Draw the parts of a step, each of shape (n_draws, n_configurations)."""
        drawn = self.parameter_draws(normals).items()
        parts = [split(parameters, at, shape) for shape, parameters in drawn]
        return Terms(*np.concatenate(parts, axis=1))


def _linear(
    components: Sequence[LinearisedNode],
    at: Configurations,
    cross: np.ndarray,
    carried: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and slopes of the log time by component, discrepancy included.

    Components of a shape are beside each other.

    Returns
    -------
    means : ndarray, shape (n_components, n)
    slopes : ndarray, shape (n_components, n, 14)
    """
    means, slopes = [], []
    for shape, group in _by_shape(components):
        mean, slope = log_time(
            _stacked(component.parameters for component in group), at, shape
        )
        means.append(
            mean + _stacked(component.weights for component in group) @ cross.T
        )
        slopes.append(
            slope - carried.T @ _stacked(component.slopes for component in group)
        )
    return np.concatenate(means), np.concatenate(slopes)


def _by_shape(
    components: Iterable[LinearisedNode],
) -> Iterator[tuple[Shape, list[LinearisedNode]]]:
    for shape, group in itertools.groupby(
        components, lambda component: component.shape
    ):
        yield shape, list(group)


def _stacked(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.array([*arrays])


def _covariances(components: Iterable[LinearisedNode]) -> np.ndarray:
    return _stacked(component.covariance for component in components)


def _shares(components: Iterable[LinearisedNode], num_draws: int) -> list[slice]:
    weights = [component.share for component in components]
    ends = np.cumsum([0.0, *weights]) / sum(weights) * num_draws
    bounds = np.round(ends).astype(int).tolist()
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def _components(
    fits: Mapping[Shape, ShapeFit], num_points: int, *, across: bool
) -> tuple[LinearisedNode, ...]:
    logs = np.array([fit.log_evidence for fit in fits.values()])
    weights = np.exp((logs - logs.max()) / np.sqrt(num_points))
    weights /= weights.sum()
    found = [
        replace(node, share=float(weight) * node.share)
        for fit, weight in zip(fits.values(), weights, strict=True)
        for node in (fit.nodes_across if across else fit.nodes)
    ]
    kept = [component for component in found if component.share > _LEAST_WEIGHT]
    total = sum(component.share for component in kept)
    return tuple(
        replace(component, share=component.share / total) for component in kept
    )


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return the symmetric square root of covariances, which may be singular.

    Unlike other roots it is unique, where eigenvalues are equal too: rounding, and so
    the processor, changes no draw by more than itself.
    """
    values, vectors = np.linalg.eigh(covariance)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return np.asarray(scaled @ vectors.swapaxes(-1, -2))

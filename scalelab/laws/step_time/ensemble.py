"""Model averaging: the shapes fitted to one curve, weighed by their evidence.

No single shape is chosen, because the best shape on the measured points is often not
the best one beyond them. The evidence is tempered, because neighbouring points share
their errors. Where the shapes disagree, the prediction is uncertain.

Machines unlike most: what the prior of a curve expects of links and of storage.

Where no row crossed between two nodes, the exchange between two full nodes is believed
to take what it takes on published machines, whatever the shape: one log-normal for all
machines, in passes of the curve. Where the bytes ``G`` of the gradients are known, it
is longer as they exceed what devices usually compute in a pass. Where the link is
stated, the exchange takes ``G / bandwidth`` if each node sends its sum, and up to twice
that if one ring joins all devices; for ``G`` that is not known a belief stands in, how
many bytes of gradients a device computes per second.

Measured links differ by factors of hundreds, so that an exchange may cost far more than
is usual. Under one normal prior a far value is shared out among all parameters that
make it less improbable, such as that of *exactly two* nodes, or it is taken for
scatter. More nodes or devices would then seem nearly free.

A source that all devices share, such as storage, passes a fixed number of samples per
second, however many devices ask for them. On most machines it is never met, so that a
curve has none unless its rows show one: a step that grows with the samples of all
devices, which no exchange of gradients does.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from scalelab.inputs.links import Link
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import (
    LinearisedNode,
    ShapeFit,
    log_evidence,
    shared_process,
)
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import (
    EXCHANGE,
    FEED,
    GROWTH,
    GROWTH_PER_NODE,
    NODE_JUMP,
    NUM_PARAMETERS,
    SCALE,
    SECOND_NODE,
    Shape,
    Terms,
    log_time,
    split,
)

# An exchange between two full nodes, in passes: median, and deviation of the log, as
# six sources of published rows have it, see docs/laws.md
_PASSES, _SPREAD_OF_PASSES = 0.4, 1.0
# The central 80% of beliefs. The share of a stated bandwidth that is reached; the bytes
# sent, in bytes exchanged; the bytes/s of gradients, from small networks on old devices
# to large ones on new devices.
_REACHED = (0.5, 1.0)
_SENT = (0.8, 2.0)
_GRADIENTS = (0.1e9, 10e9)
_NORMAL_80 = 2.5631  # width of the central 80% of a normal, in standard deviations
# One machine in fifty has unusual links, whose costs spread four times as wide; one in
# fifty is limited by its feed within the measured allocations: the largest of them is
# then about where the limit begins, within a factor of three
_LOG_ODDS, _WIDER, _FEED_SPREAD = float(np.log(0.02 / 0.98)), 4.0, 1.0


def with_unmeasured_link(
    priors: Mapping[Shape, ShapePrior], points: Points, link: Link | None
) -> dict[Shape, ShapePrior]:
    """Return priors in which the second node costs what a link between nodes costs."""
    if link is not None:
        value, spread = _exchange_over(link, points)
    else:
        value, spread = float(np.log(_PASSES)), _SPREAD_OF_PASSES
        if np.isfinite(points.log_rate):
            value += points.log_rate - _log_normal(*_GRADIENTS)[0]

    per_node = float(points.at.per_node.max())
    return {
        shape: _tied(prior, shape, per_node, value, spread)
        for shape, prior in priors.items()
    }


def _exchange_over(link: Link, points: Points) -> tuple[float, float]:
    """Return mean and deviation of the log passes of an exchange over a stated link."""
    sent, rate = _log_normal(*_SENT), (points.log_rate, 0.0)
    reached = [share * link.bandwidth_bytes_per_s for share in _REACHED]
    bandwidth = _log_normal(*reached)
    if not np.isfinite(points.log_rate):
        rate = _log_normal(*_GRADIENTS)
    passes = np.exp(sent[0] + rate[0] - bandwidth[0])
    passes += 2 * (link.latency_s or 0.0) / points.time_unit_s
    spread = np.sqrt(sent[1] ** 2 + rate[1] ** 2 + bandwidth[1] ** 2)
    return float(np.log(passes)), float(spread)


def _log_normal(low: float, high: float) -> tuple[float, float]:
    """Return mean and standard deviation of a log whose central 80% is given."""
    return float(np.log(low * high) / 2), float(np.log(high / low) / _NORMAL_80)


def _tied(
    prior: ShapePrior, shape: Shape, per_node: float, value: float, spread: float
) -> ShapePrior:
    """Return a prior whose node jump makes the log exchange of two full nodes normal.

    The other parameters keep their prior: a belief about links says nothing of them.
    """
    weights, constant = np.zeros(NUM_PARAMETERS), 0.0
    weights[[SCALE, EXCHANGE, SECOND_NODE]] = -1.0
    weights[GROWTH_PER_NODE] = -np.log(per_node)

    if shape is not Shape.TIERS:
        weights[GROWTH] = -np.log(per_node)
        constant = float(np.log(2 * (2 * per_node - 1) / (2 * per_node)))

    mean, covariance = prior.mean.copy(), prior.covariance.copy()
    mean[NODE_JUMP] = 0.0
    covariance[NODE_JUMP, :] = covariance[:, NODE_JUMP] = 0.0
    along = covariance @ weights
    mean[NODE_JUMP] = value - constant + weights @ mean
    covariance[NODE_JUMP, :] = covariance[:, NODE_JUMP] = along
    covariance[NODE_JUMP, NODE_JUMP] = weights @ along + spread**2
    return replace(prior, mean=mean, covariance=covariance)


def with_unusual_links(points: Points, prior: ShapePrior, shape: Shape) -> ShapePrior:
    """Return the prior, wider for the links that the points show to be unusual."""
    process = DiscrepancyProcess.of(points, prior.amplitude_mean)
    is_told = {EXCHANGE: points.at.is_parallel, NODE_JUMP: points.at.crosses}

    best, most = prior, log_evidence(process, prior, shape)
    for parameter in (kind for kind, where in is_told.items() if where.any()):
        wider = prior.widened(
            parameter, _WIDER**2 * float(prior.covariance[parameter, parameter])
        )
        probable = _LOG_ODDS + log_evidence(process, wider, shape)
        if probable > most:
            best, most = wider, probable

    return best


def with_shared_feed(points: Points, prior: ShapePrior, shape: Shape) -> ShapePrior:
    """Return the prior with a feed that all devices share, if the points show one."""
    at = points.at.take(np.flatnonzero(points.at.is_parallel))
    devices = np.column_stack([at.world_size, at.num_nodes])
    steps = np.column_stack([devices, at.log_samples_of_all])
    if len(np.unique(devices, axis=0)) == len(np.unique(steps, axis=0)):
        return prior  # no allocation of several devices was measured at several batches
    fed = prior.believing(FEED, -points.at.log_samples_of_all.max(), _FEED_SPREAD)
    process = DiscrepancyProcess.of(points, prior.amplitude_mean)
    gain = log_evidence(process, fed, shape) - log_evidence(process, prior, shape)
    return fed if _LOG_ODDS + gain > 0 else prior


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

"""Machines unlike most: what the prior of a curve expects of links and of storage.

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

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scalelab.inputs.links import Link
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import log_evidence
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

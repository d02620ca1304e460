"""What is believed of the exchange between nodes where no row crossed between two.

Two nodes may be joined by a 1 Gbit/s Ethernet or by a 400 Gbit/s InfiniBand, and no row
of one node knows which. So the cost of the second node follows from a belief over link
speeds, or from a link that is stated. It never counts where a row is on several nodes.

An exchange of ``G`` bytes between two nodes takes ``G / bandwidth`` if each node sends
its sum, and up to twice that if one ring joins all devices. Where ``G`` is not known, a
belief stands in: how many bytes of gradients a device computes per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scalelab.inputs.links import Link
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import NODE_JUMP, NUM_PARAMETERS, PARAMETERS, Shape

# The central 80% of beliefs. Bytes/s between nodes, from 1 GbE to 400 Gbit/s; the share
# of a stated bandwidth that is reached; the bytes sent, in bytes exchanged; the bytes/s
# of gradients, from small networks on old devices to large ones on new devices.
_BANDWIDTH = (0.06e9, 50e9)
_REACHED = (0.5, 1.0)
_SENT = (0.8, 2.0)
_GRADIENTS = (0.1e9, 10e9)
_NORMAL_80 = 2.5631  # width of the central 80% of a normal, in standard deviations


def with_unmeasured_link(
    priors: Mapping[Shape, ShapePrior], points: Points, link: Link | None
) -> dict[Shape, ShapePrior]:
    """Return priors in which the second node costs what a link between nodes costs.

    Parameters
    ----------
    priors
        The prior of each shape on the curve.
    """
    sent, bandwidth = _log_normal(*_SENT), _log_normal(*_BANDWIDTH)
    rate, latency_s = (points.log_rate, 0.0), 0.0
    if link is not None:
        reached = [share * link.bandwidth_bytes_per_s for share in _REACHED]
        bandwidth, latency_s = _log_normal(*reached), link.latency_s or 0.0
    if not np.isfinite(points.log_rate):
        rate = _log_normal(*_GRADIENTS)
    passes = np.exp(sent[0] + rate[0] - bandwidth[0])
    passes += 2 * latency_s / points.time_unit_s
    spread = float(np.sqrt(sent[1] ** 2 + rate[1] ** 2 + bandwidth[1] ** 2))
    per_node = float(points.at.per_node.max())
    return {
        shape: _tied(prior, *_exchange(shape, per_node), float(np.log(passes)), spread)
        for shape, prior in priors.items()
    }


def _log_normal(low: float, high: float) -> tuple[float, float]:
    """Return mean and standard deviation of a log whose central 80% is given."""
    return float(np.log(low * high) / 2), float(np.log(high / low) / _NORMAL_80)


def _exchange(shape: Shape, per_node: float) -> tuple[np.ndarray, float]:
    """Return weights and constant whose sum is the log exchange of two full nodes."""
    names = ("scale", "exchange", "node_jump", "second_node")
    row = _row(growth_per_node=np.log(per_node), **dict.fromkeys(names, 1.0))
    if shape is Shape.TIERS:
        return row, 0.0
    ring = 2 * (2 * per_node - 1) / (2 * per_node)
    return row + _row(growth=np.log(per_node)), float(np.log(ring))


def _row(**weights: float) -> np.ndarray:
    row = np.zeros(NUM_PARAMETERS)
    for name, weight in weights.items():
        row[PARAMETERS.index(name)] = weight
    return row


def _tied(
    prior: ShapePrior, row: np.ndarray, constant: float, value: float, spread: float
) -> ShapePrior:
    """Return a prior whose node jump makes a sum of parameters a given normal.

    The other parameters keep their prior: a belief about links says nothing of them.
    """
    weights = -row
    weights[NODE_JUMP] = 0.0
    mean, covariance = prior.mean.copy(), prior.covariance.copy()
    mean[NODE_JUMP] = 0.0
    covariance[NODE_JUMP, :] = covariance[:, NODE_JUMP] = 0.0
    along = covariance @ weights
    mean[NODE_JUMP] = value - constant + weights @ mean
    covariance[NODE_JUMP, :] = covariance[:, NODE_JUMP] = along
    covariance[NODE_JUMP, NODE_JUMP] = weights @ along + spread**2
    return replace(prior, mean=mean, covariance=covariance)

"""The parts of a step: what it would be shorter by without one of its causes.

There is no second model: a part is the difference between two step times of the shape
that predicts, with and without a cause. The causes are taken away in this order: the
feed that all devices share, the boundary between nodes, the exchange, the contention in
a node, the waiting for the slowest device. What is left is computation. Its part that
grows in proportion to the batch, from this batch on, belongs to the samples; the rest
is fixed cost.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scalelab.laws.step_time.physics import NEVER, Configurations
from scalelab.laws.step_time.shapes import (
    CONTENTION,
    CROSSING,
    EXCHANGE,
    FEED,
    IMBALANCE,
    NODE_JUMP,
    Shape,
    log_time,
)

_STEP = 1e-4  # relative change of the batch, for the slope of the computation


class Terms(NamedTuple):
    """Parts of the step time, seconds, each of shape (n_configurations,).

    Or of shape (n_sets, n_configurations), for several sets of parameters.

    Of an exchange, only what computation does not hide is a part of the step.
    """

    fixed: np.ndarray
    per_sample: np.ndarray
    waiting: np.ndarray
    contention: np.ndarray
    intra_node: np.ndarray
    inter_node: np.ndarray
    feed: np.ndarray
    # Difference between the predicted step time and the sum of the other parts: what
    # the discrepancy process adds. It may be negative.
    unexplained: np.ndarray

    @property
    def step_time_s(self) -> np.ndarray:
        """The sum of the parts."""
        return np.asarray(np.sum(self, axis=0))


def split(parameters: np.ndarray, at: Configurations, shape: Shape) -> Terms:
    """Split the step time of a shape into its parts; nothing of it is unexplained."""

    def seconds(changed: np.ndarray, where: Configurations = at) -> np.ndarray:
        return np.asarray(np.exp(log_time(changed, where, shape)[0]))

    free = _without(parameters, FEED)
    whole, one_node = seconds(free), free.copy()
    one_node[..., CROSSING] = 0.0
    if shape is Shape.TIERS:
        one_node[..., NODE_JUMP] = NEVER
    silent = _without(free, EXCHANGE)
    uncrowded = _without(silent, CONTENTION)
    together = _without(uncrowded, IMBALANCE)
    compute = seconds(silent)
    # one device on each node exchanges nothing within a node
    is_alone = at.world_size <= at.num_nodes
    within = np.where(is_alone, compute, np.minimum(seconds(one_node), whole))
    calm, equal = seconds(uncrowded), seconds(together)
    more = seconds(together, replace(at, samples=at.samples * (1 + _STEP)))
    per_sample = (more - equal) / _STEP
    return Terms(
        fixed=equal - per_sample,
        per_sample=per_sample,
        waiting=calm - equal,
        contention=compute - calm,
        intra_node=within - compute,
        inter_node=whole - within,
        feed=seconds(parameters) - whole,
        unexplained=np.zeros_like(whole),
    )


def _without(parameters: np.ndarray, cost: int) -> np.ndarray:
    changed = parameters.copy()
    changed[..., cost] = NEVER
    return changed

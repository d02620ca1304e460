"""Three formulas for the step time, called shapes, with their derivatives.

With ``n`` devices on ``m`` nodes, ``k = n / m`` on each, ``b`` samples per pass in
units of the curve's typical local batch and ``A`` passes per step::

    C = scale (share + (1 - share) b^(q p))^(1/q) (1 + imbalance + contention (k - 1))
    T = (A - 1) C + (C^g + S^g)^(1/g)
    step = (T^8 + F^8)^(1/8),  F = scale feed n b A

``feed`` is the time that a source shared by all devices, such as storage, takes for the
samples of one: the step is the longer of the two, but for a bend where they are equal.
``imbalance`` and ``S`` are zero on one device. How the exchange ``S`` grows differs
between machines, so there are three shapes:

``TIERS``: a ring in the node and an exchange between nodes, added up;
``S = scale exchange (ring(k) (k/2)^growth + jump k^per_node (m/2)^nodes)``.

``ONE_RING``: one ring over all devices whose level and growth may change at the node
boundary; ``S = scale exchange ring(n) (n/2)^growth`` within a node, times
``jump k^per_node (m/2)^nodes`` across nodes.

``EXPOSED``: the formula of ``ONE_RING`` under a prior with hardly any overlap.

``ring(k) = 2 (k - 1) / k``. Exactly two nodes may differ from more by a factor
``second_node``. All parameters are logarithms, exponents or log odds, so that their
prior can be normal.

There is no second model for the parts of a step: a part is the difference between two
step times of the shape that predicts, with and without a cause. The causes are taken
away in this order: the feed that all devices share, the boundary between nodes, the
exchange, the contention in a node, the waiting for the slowest device. What is left is
computation. Its part that grows in proportion to the batch, from this batch on, belongs
to the samples; the rest is fixed cost.

References
----------
Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*, section 3 (ring).
Qiao et al. 2021, *Pollux*, equations 9 to 11 (overlap as a norm, accumulation).
"""

from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from scalelab.laws.step_time.physics import NEVER, Configurations

PARAMETERS = (
    "scale",
    "fixed_share",
    "batch_exponent",
    "batch_sharpness",
    "exchange",
    "growth",
    "node_jump",
    "growth_per_node",
    "growth_nodes",
    "second_node",
    "overlap",
    "imbalance",
    "contention",
    "feed",
)
"""Log scale; log odds of the fixed share; p; log(q - 1); log exchange over scale; the
exponent; log jump; two exponents; log factor; log(g - 1); two logs of shares; log feed
over scale."""
NUM_PARAMETERS = len(PARAMETERS)
(
    SCALE,
    FIXED_SHARE,
    BATCH_EXPONENT,
    _BATCH_SHARPNESS,
    EXCHANGE,
    GROWTH,
    NODE_JUMP,
    GROWTH_PER_NODE,
    _GROWTH_NODES,
    SECOND_NODE,
    OVERLAP,
    IMBALANCE,
    CONTENTION,
    FEED,
) = range(NUM_PARAMETERS)
CROSSING = slice(NODE_JUMP, SECOND_NODE + 1)
"""The parameters of an exchange between nodes."""
_FEED_POWER = 8.0  # of the sum of a step and its feed: nearly the longer of the two
_FAR = 50.0  # larger exponents would change no float
_Sloped = tuple[np.ndarray, np.ndarray]


class Shape(StrEnum):
    """A shape of the step-time curve: how its exchange grows with devices and nodes."""

    TIERS = "tiers"
    ONE_RING = "one_ring"
    EXPOSED = "exposed"


def log_time(
    parameters: np.ndarray, at: Configurations, shape: Shape
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log step time and its slopes along the parameters.

    Returns
    -------
    log_time : ndarray, shape (n_configurations,) or (n_sets, n_configurations)
    slopes : ndarray, shape (n_configurations, 14) or (n_sets, n_configurations, 14)
    """
    exchange = _tiers if shape is Shape.TIERS else _one_ring
    by_name = parameters.T[..., None]
    log_step, slopes = _join(by_name, at, _compute(by_name, at), exchange(by_name, at))
    feed = by_name[SCALE] + by_name[FEED] + at.log_samples_of_all
    top = np.maximum(log_step, feed)
    share = np.exp(_FEED_POWER * (log_step - top))
    feed_share = np.exp(_FEED_POWER * (feed - top))
    total = share + feed_share
    slopes = slopes * (share / total)[..., None]
    slopes[..., [SCALE, FEED]] += (feed_share / total)[..., None]
    return top + np.log(total) / _FEED_POWER, slopes


def in_batch_unit(parameters: np.ndarray, factor: float) -> np.ndarray:
    """Convert parameters to another unit of local batches, with the same step times."""
    changed = parameters.copy()
    power = 1 + np.exp(parameters[3])
    log_share, log_rest = -np.logaddexp(0, [-parameters[1], parameters[1]])
    growing = power * parameters[2] * np.log(factor)
    log_total = np.logaddexp(log_share, log_rest + growing)
    changed[0] += log_total / power
    changed[1] -= growing
    changed[EXCHANGE] -= log_total / power
    changed[FEED] += np.log(factor) - log_total / power
    return changed


def _compute(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, odds, exponent, sharpness = parameters[:4]
    imbalance, contention = parameters[11:13]
    power = 1 + np.exp(sharpness)
    share = 1 / (1 + np.exp(-odds))
    rest, log_growing = 1 - share, exponent * at.log_samples
    growing = np.exp(np.clip(power * log_growing, -_FAR, _FAR))
    total = share + rest * growing
    log_total = np.log(total) / power
    moving = rest * growing / total
    waiting = np.exp(imbalance) * at.is_parallel
    crowding = np.exp(contention) * (at.per_node - 1)
    slow = 1 + waiting + crowding
    slopes = np.zeros((*total.shape, NUM_PARAMETERS))
    slopes[..., 0] = 1
    slopes[..., 1] = share * rest * (1 - growing) / total / power
    slopes[..., 2] = moving * at.log_samples
    slopes[..., 3] = (moving * log_growing - log_total) * (1 - 1 / power)
    slopes[..., 11] = waiting / slow
    slopes[..., 12] = crowding / slow
    return scale + log_total + np.log(slow), slopes


def _tiers(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, level, growth, jump = parameters[[0, 4, 5, 6]]
    within = at.log_ring_in_node + growth * at.log_pairs_in_node
    within = np.where(at.is_shared, within, NEVER)
    across = np.where(at.crosses, jump + _crossing(parameters, at), NEVER)
    log_sum = np.logaddexp(within, across)
    share_across = np.exp(across - log_sum) * at.crosses
    slopes = np.zeros((*log_sum.shape, NUM_PARAMETERS))
    slopes[..., 0] = slopes[..., EXCHANGE] = 1
    slopes[..., 5] = np.exp(within - log_sum) * at.log_pairs_in_node * at.is_shared
    slopes[..., 6] = share_across
    slopes[..., 7:10] = share_across[..., None] * at.crossing
    return scale + level + log_sum, slopes


def _one_ring(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, level, growth, jump = parameters[[0, 4, 5, 6]]
    change = at.crosses * (jump + _crossing(parameters, at))
    slopes = np.zeros((*change.shape, NUM_PARAMETERS))
    slopes[..., 0] = slopes[..., EXCHANGE] = 1
    slopes[..., 5] = at.log_pairs
    slopes[..., 6] = at.crosses
    slopes[..., 7:10] = at.crosses[:, None] * at.crossing
    return scale + level + at.log_ring + growth * at.log_pairs + change, slopes


def _crossing(parameters: np.ndarray, at: Configurations) -> np.ndarray:
    """Return the log cost of an exchange between nodes, relative to 2 nodes x 1."""
    per_node, nodes, second_node = parameters[7:10]
    log_devices, log_pairs, is_pair = at.crossing.T
    return np.asarray(
        per_node * log_devices + nodes * log_pairs + second_node * is_pair
    )


def _join(
    parameters: np.ndarray, at: Configurations, compute: _Sloped, sync: _Sloped
) -> _Sloped:
    """Return the log step time: overlapped exchange, plus the passes before it."""
    power = 1 + np.exp(parameters[10])
    top = np.where(at.is_parallel, np.maximum(compute[0], sync[0]), compute[0])
    lead, sync_lead = compute[0] - top, np.where(at.is_parallel, sync[0] - top, 0.0)
    share, sync_share = np.exp(power * lead), np.exp(power * sync_lead) * at.is_parallel
    total = share + sync_share
    share, sync_share = share / total, sync_share / total
    longer = np.log(total) / power
    bend = share * lead + sync_share * sync_lead - longer
    before, last = compute[0] + at.log_passes_before, top + longer
    log_step = np.logaddexp(before, last)
    early, late = np.exp(before - log_step), np.exp(last - log_step)
    slopes = (early + late * share)[..., None] * compute[1]
    slopes += (late * sync_share)[..., None] * sync[1]
    slopes[..., 10] = late * bend * (1 - 1 / power)
    return log_step, slopes


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

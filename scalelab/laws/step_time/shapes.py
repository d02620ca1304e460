"""Three formulas for the step time, called shapes, with their derivatives.

With ``n`` devices on ``m`` nodes, ``k = n / m`` on each, ``b`` samples per pass in
units of the curve's typical local batch and ``A`` passes per step::

    C = scale (share + (1 - share) b^(q p))^(1/q) (1 + imbalance + contention (k - 1))
    T = (A - 1) C + (C^g + S^g)^(1/g)

``imbalance`` and ``S`` are zero on one device. How the exchange ``S`` grows differs
between machines, so there are three shapes:

``TIERS``: a ring in the node and an exchange between nodes, added up;
``S = scale exchange (ring(k) (k/2)^growth + jump k^per_node (m/2)^nodes)``.

``ONE_RING``: one ring over all devices whose level and growth may change at the node
boundary; ``S = scale exchange ring(n) (n/2)^growth`` within a node, times
``jump k^per_node (m/2)^nodes`` across nodes.

``SATURATED``: the formula of ``ONE_RING`` under a prior with hardly any growth and no
overlap.

``ring(k) = 2 (k - 1) / k``. Exactly two nodes may differ from more by a factor
``second_node``. All parameters are logarithms, exponents or log odds, so that their
prior can be normal.

References
----------
Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*, section 3 (ring).
Qiao et al. 2021, *Pollux*, equations 9 to 11 (overlap as a norm, accumulation).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from scalelab.laws.step_time.physics import Configurations

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
)
"""Log scale; log odds of the fixed share; p; log(q - 1); log exchange over scale; the
exponent; log jump; two exponents; log factor; log(g - 1); two logs of shares."""
NUM_PARAMETERS = len(PARAMETERS)
SCALE = PARAMETERS.index("scale")
FIXED_SHARE = PARAMETERS.index("fixed_share")
BATCH_EXPONENT = PARAMETERS.index("batch_exponent")
EXCHANGE = PARAMETERS.index("exchange")
NODE_JUMP = PARAMETERS.index("node_jump")
OVERLAP = PARAMETERS.index("overlap")
IMBALANCE = PARAMETERS.index("imbalance")
CONTENTION = PARAMETERS.index("contention")
CROSSING = slice(NODE_JUMP, PARAMETERS.index("second_node") + 1)
"""The parameters of an exchange between nodes."""
_FAR = 50.0  # larger exponents would change no float
NEVER = -60.0  # the log of a cost that no float shows
_Sloped = tuple[np.ndarray, np.ndarray]


class Shape(StrEnum):
    """A shape of the step-time curve: how its exchange grows with devices and nodes."""

    TIERS = "tiers"
    ONE_RING = "one_ring"
    SATURATED = "saturated"


def log_time(
    parameters: np.ndarray, at: Configurations, shape: Shape
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log step time and its slopes along the parameters.

    Parameters
    ----------
    parameters : ndarray, shape (13,)
        In the order of :data:`PARAMETERS`.
    at
        The configurations; samples in units of the curve's typical local batch.
    shape
        One of the three shapes.

    Returns
    -------
    log_time : ndarray, shape (n_configurations,)
    slopes : ndarray, shape (n_configurations, 13)
    """
    exchange = _tiers if shape is Shape.TIERS else _one_ring
    return _join(parameters, at, _compute(parameters, at), exchange(parameters, at))


def in_batch_unit(parameters: np.ndarray, factor: float) -> np.ndarray:
    """Convert parameters to another unit of local batches, with the same step times.

    Parameters
    ----------
    parameters : ndarray, shape (13,)
    factor
        New unit over old unit.
    """
    changed = parameters.copy()
    power = 1 + np.exp(parameters[3])
    log_share, log_rest = -np.logaddexp(0, [-parameters[1], parameters[1]])
    growing = power * parameters[2] * np.log(factor)
    log_total = np.logaddexp(log_share, log_rest + growing)
    changed[0] += log_total / power
    changed[1] -= growing
    changed[EXCHANGE] -= log_total / power
    return changed


def _compute(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, odds, exponent, sharpness = parameters[:4]
    imbalance, contention = parameters[11:]
    per_node = np.ceil(at.world_size / at.num_nodes - 1e-9)
    log_batch = np.log(at.samples)
    power = 1 + np.exp(sharpness)
    share = 1 / (1 + np.exp(-odds))
    growing = np.exp(np.clip(power * exponent * log_batch, -_FAR, _FAR))
    total = share + (1 - share) * growing
    moving = (1 - share) * growing / total
    waiting = np.exp(imbalance) * (at.world_size > 1)
    crowding = np.exp(contention) * (per_node - 1)
    slow = 1 + waiting + crowding
    slopes = np.zeros((len(log_batch), NUM_PARAMETERS))
    slopes[:, 0] = 1
    slopes[:, 1] = share * (1 - share) * (1 - growing) / total / power
    slopes[:, 2] = moving * log_batch
    bend = moving * exponent * log_batch / power - np.log(total) / power**2
    slopes[:, 3] = bend * (power - 1)
    slopes[:, 11] = waiting / slow
    slopes[:, 12] = crowding / slow
    return scale + np.log(total) / power + np.log(slow), slopes


def _tiers(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, level, growth, jump = parameters[[0, 4, 5, 6]]
    mean_per_node = at.world_size / at.num_nodes
    per_node = np.maximum(np.ceil(mean_per_node - 1e-9), 1)
    inside, across = per_node > 1, at.num_nodes > 1
    log_ring = np.log(np.where(inside, 2 * (per_node - 1) / per_node, 1.0))
    log_inside = np.log(per_node / 2)
    inner = np.where(inside, log_ring + growth * log_inside, NEVER)
    crossing, crossing_slopes = _crossing(parameters, at)
    outer = np.where(across, jump + crossing, NEVER)
    top = np.maximum(inner, outer)
    weights = np.exp([inner - top, outer - top])
    share = weights / weights.sum(axis=0)
    slopes = np.zeros((len(top), NUM_PARAMETERS))
    slopes[:, 0] = slopes[:, EXCHANGE] = 1
    slopes[:, 5] = share[0] * log_inside * inside
    slopes[:, 6] = share[1] * across
    slopes[:, 7:10] = (share[1] * across)[:, None] * crossing_slopes
    return scale + level + top + np.log(weights.sum(axis=0)), slopes


def _one_ring(parameters: np.ndarray, at: Configurations) -> _Sloped:
    scale, level, growth, jump = parameters[[0, 4, 5, 6]]
    members = np.maximum(at.world_size, 2)
    across = (at.num_nodes > 1).astype(float)
    log_members = np.log(members / 2)
    crossing, crossing_slopes = _crossing(parameters, at)
    slopes = np.zeros((len(members), NUM_PARAMETERS))
    slopes[:, 0] = slopes[:, EXCHANGE] = 1
    slopes[:, 5] = log_members
    slopes[:, 6] = across
    slopes[:, 7:10] = across[:, None] * crossing_slopes
    ring = np.log(2 * (members - 1) / members)
    change = across * (jump + crossing)
    return scale + level + ring + growth * log_members + change, slopes


def _crossing(parameters: np.ndarray, at: Configurations) -> _Sloped:
    """Return the log cost of an exchange between nodes, relative to 2 nodes x 1."""
    slopes = np.column_stack(
        [
            np.log(at.world_size / at.num_nodes),
            np.log(np.maximum(at.num_nodes, 2) / 2),
            at.num_nodes == 2,
        ]
    )
    return slopes @ parameters[7:10], slopes


def _join(
    parameters: np.ndarray, at: Configurations, compute: _Sloped, sync: _Sloped
) -> _Sloped:
    """Return the log step time: overlapped exchange, plus the passes before it."""
    power = 1 + np.exp(parameters[10])
    several = at.world_size > 1
    top = np.maximum(compute[0], np.where(several, sync[0], NEVER))
    shares = np.exp(power * np.array([compute[0] - top, sync[0] - top]))
    shares[1] *= several
    total = shares.sum(axis=0)
    shares /= total
    last = top + np.log(total) / power
    leads = np.array([compute[0] - top, np.where(several, sync[0] - top, 0.0)])
    bend = (shares * leads).sum(axis=0) / power - np.log(total) / power**2
    before = np.where(
        at.accumulation > 1, np.log(np.maximum(at.accumulation - 1, 1e-9)), NEVER
    )
    before = before + compute[0]
    log_total = np.logaddexp(before, last)
    early, late = np.exp(before - log_total), np.exp(last - log_total)
    slopes = (early + late * shares[0])[:, None] * compute[1]
    slopes += (late * shares[1])[:, None] * sync[1]
    slopes[:, 10] = late * bend * (power - 1)
    return log_total, slopes

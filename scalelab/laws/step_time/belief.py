"""What is believed of any curve before it is measured: a normal prior for each shape.

The values are round numbers with their reasons; ``docs/laws.md`` says what was tried
instead. A curve's own rows, and those of its relatives, override all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from scalelab.laws.step_time.physics import NEVER
from scalelab.laws.step_time.shape_prior import ShapePrior, free_scale
from scalelab.laws.step_time.shapes import PARAMETERS, Shape

_USUAL = {
    # the unit of time of a curve is its own
    "scale": (0.0, 3.0),
    # a pass may be all fixed cost or none of it: nothing is known
    "fixed_share": (0.5, 3.5),
    # larger batches use a device a little better
    "batch_exponent": (0.95, 0.09),
    # fixed cost and arithmetic nearly add up, or the larger of the two decides
    "batch_sharpness": (-0.3, 1.0),
    # 40% of a pass between two devices, within a factor of three
    "exchange": (-0.9, 1.0),
    # a ring is done growing after eight devices; latency and stragglers add a little
    "growth": (0.15, 0.2),
    # the slowest link decides, and links between nodes are a quarter slower or twice
    "node_jump": (0.25, 0.5),
    "growth_per_node": (-0.05, 0.22),
    # congestion: 6% more for each doubling of nodes
    "growth_nodes": (0.08, 0.22),
    # that exactly two nodes are special is a quirk of a few machines, no trend of all
    "second_node": (0.0, 0.32),
    # more than half of a short exchange hides behind the computation
    "overlap": (0.5, 0.8),
    # the slowest of several devices is 3% behind, within a factor of three
    "imbalance": (-3.5, 1.2),
    # devices of a node are hardly ever in each other's way; where they are, it shows
    "contention": (-5.5, 1.7),
    # no machine's feed is met, unless rows show it: laws/shared_feed.py
    "feed": (NEVER, 1.0),
}
"""Mean and standard deviation of each of ``PARAMETERS``."""
_OWN = {
    Shape.TIERS: {
        # the ring in the node is short; the node boundary is a term of its own, and
        # may cost a few times as much as that ring or hardly anything
        "exchange": (-1.3, 1.1),
        "node_jump": (0.2, 1.15),
        # several devices of a node share its link to others
        "growth_per_node": (0.12, 0.25),
        "growth_nodes": (0.33, 0.2),
        "overlap": (0.2, 1.0),
    },
    Shape.ONE_RING: {},
    # what defines this shape: hardly any growth, and nothing is hidden
    Shape.SATURATED: {
        "exchange": (-1.3, 1.1),
        "growth": (0.0, 0.05),
        "node_jump": (0.35, 0.6),
        "growth_per_node": (0.0, 0.1),
        "growth_nodes": (0.15, 0.12),
        "overlap": (-2.0, 0.5),
        "contention": (-7.0, 1.0),
    },
}
# the discrepancy: smooth in all axes, of a batch, of a placement, of a configuration
_AMPLITUDE_MEAN = np.log([0.05, 0.04, 0.03, 0.025])
_AMPLITUDE_SPREAD = np.array([0.7, 0.8, 1.1, 0.8])


@cache
def stated_priors() -> Mapping[Shape, ShapePrior]:
    """Return the prior of each shape on any curve."""
    return {shape: _prior(_USUAL | own) for shape, own in _OWN.items()}


def _prior(values: Mapping[str, tuple[float, float]]) -> ShapePrior:
    mean, spread = np.array([values[name] for name in PARAMETERS]).T
    return ShapePrior(
        mean=mean,
        covariance=free_scale(np.diag(spread**2)),
        amplitude_mean=_AMPLITUDE_MEAN,
        amplitude_spread=_AMPLITUDE_SPREAD,
    )

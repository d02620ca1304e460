"""What the shapes say about a machine: costs in seconds, and shares.

The parameters of a shape are logarithms and exponents in the units of their curve. This
table gives what they mean, in physical units and alike for all shapes, with intervals
over the draws of all shapes.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from scalelab.laws.interval import NUM_DRAWS, SEED, central, shortest_positive
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.physics import NEVER, Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shapes import (
    BATCH_EXPONENT,
    CONTENTION,
    EXCHANGE,
    FEED,
    FIXED_SHARE,
    IMBALANCE,
    NUM_PARAMETERS,
    OVERLAP,
    SCALE,
    Shape,
    log_time,
)
from scalelab.laws.support import Gap

UNITS = {
    "compute_fixed": "s",
    "compute_per_sample": "s",
    "compute_exponent": "1",
    "imbalance": "1",
    "contention": "1",
    "intra_node_exchange": "s",
    "inter_node_exchange": "s",
    "overlap": "1",
    "shared_feed": "samples/s",
}
"""Cost of a typical pass that no smaller batch saves; cost of one more sample; exponent
of the batch; waiting for the slowest device and, for each further device of a node,
contention, as shares of a pass; what an exchange adds to the smallest pass on one full
node, and what it adds more on two; how sharply an exchange hides behind computation,
from 0, not at all, to 1; what a source that all devices share passes."""
_WIDE = 4.0  # hi / lo beyond which a cost in seconds is not identified
_WIDE_SHARE = 0.25  # hi - lo beyond which a share is not identified
_NEGLIGIBLE = 0.02  # of a typical pass; a cost that is surely smaller is identified
_MIN_BATCHES, _MIN_BATCH_RANGE = 3, 4.0  # that tell the exponent of the batch
_REMEDIES = {
    "compute": "Measure a smaller and a larger local batch on one device.",
    "overlap": "Measure a smaller local batch at the largest allocation.",
}
_MORE_SIZES = "Measure more world sizes, with more repeats."


def parameter_table(
    ensemble: Ensemble,
    points: Points,
    gaps: Sequence[Gap],
    interval: float,
) -> pd.DataFrame:
    """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
    draws = _draws(ensemble, points)
    remedies = {_part(name): gap.remedy for gap in gaps for name in gap.parameters}
    rows = []

    measured = _measured(points.at)
    for name, values in draws.items():
        if name not in measured:
            continue
        lo, hi = _ends(name, values, interval)
        is_open = _part(name) in remedies or not _is_resolved(name, values, points)
        remedy = remedies.get(_part(name), _REMEDIES.get(_part(name), _MORE_SIZES))
        rows.append(
            {
                "name": name,
                "value": float(np.median(values)),
                "lo": lo,
                "hi": hi,
                "unit": UNITS[name],
                "identified": not is_open,
                "remedy": remedy if is_open else "",
            }
        )

    return pd.DataFrame(rows)


def _draws(ensemble: Ensemble, points: Points) -> dict[str, np.ndarray]:
    normals = np.random.default_rng(SEED).standard_normal((NUM_DRAWS, NUM_PARAMETERS))
    drawn = ensemble.parameter_draws(normals)
    values = np.concatenate([*drawn.values()])
    share = 1 / (1 + np.exp(-values[:, FIXED_SHARE]))
    growing = values[:, BATCH_EXPONENT] * (1 - share)
    one_pass = np.exp(values[:, SCALE]) * points.time_unit_s
    exchange = np.concatenate(
        [_exchange_s(*drawn_term, points.at) for drawn_term in drawn.items()]
    )
    within, across = points.time_unit_s * exchange.T
    found = {
        "compute_fixed": one_pass * np.maximum(1 - growing, 0.0),
        "compute_per_sample": one_pass * growing / points.batch_unit,
        "compute_exponent": values[:, BATCH_EXPONENT],
        "imbalance": np.exp(values[:, IMBALANCE]),
        "contention": np.exp(values[:, CONTENTION]),
        "intra_node_exchange": within,
        "inter_node_exchange": across,
        "overlap": 1 / (1 + np.exp(-values[:, OVERLAP])),
    }

    fed = values[values[:, FEED] > NEVER / 2]
    if 2 * len(fed) > len(values):
        one_feed = np.exp(fed[:, SCALE] + fed[:, FEED]) * points.time_unit_s
        found["shared_feed"] = points.batch_unit / one_feed

    return found


def _exchange_s(shape: Shape, draws: np.ndarray, seen: Configurations) -> np.ndarray:
    """Return what an exchange adds on a full node, and more on two, (n_draws, 2)."""
    per_node = float(seen.per_node.max())
    at = Configurations(
        world_size=np.array([per_node, 2 * per_node]),
        num_nodes=np.array([1.0, 2.0]),
        samples=np.full(2, seen.samples.min()),
        accumulation=np.ones(2),
    )

    silent = draws.copy()
    silent[:, EXCHANGE] = NEVER
    whole, compute = (
        np.exp(log_time(draws_of, at, shape)[0]) for draws_of in (draws, silent)
    )
    added = whole - compute
    added[:, 1] -= added[:, 0]
    return np.asarray(np.maximum(added, 0.0))


def _measured(at: Configurations) -> frozenset[str]:
    batches = np.unique(at.samples)
    wide = batches[-1] >= _MIN_BATCH_RANGE * batches[0]
    depends = {
        "compute_per_sample": True,
        "compute_fixed": len(batches) > 1,
        "compute_exponent": len(batches) >= _MIN_BATCHES and wide,
        "imbalance": at.world_size.min() == 1 and at.world_size.max() > 1,
        "contention": at.per_node.min() < at.per_node.max(),
        "intra_node_exchange": bool(at.is_shared.any()),
        "inter_node_exchange": bool(at.crosses.any()),
        "overlap": bool((at.world_size > 1).any()),
        "shared_feed": True,
    }
    return frozenset(name for name, does in depends.items() if does)


def _part(name: str) -> str:
    parts = ("compute", "intra_node", "inter_node")
    return next((part for part in parts if name.startswith(part)), name)


def _ends(name: str, draws: np.ndarray, interval: float) -> tuple[float, float]:
    if name == "compute_exponent":
        lo, hi = (float(end) for end in central(draws, interval))
        return lo, hi
    return shortest_positive(draws, interval)


def _is_resolved(name: str, draws: np.ndarray, points: Points) -> bool:
    lo, hi = _ends(name, draws, 0.8)
    if UNITS[name] == "1":
        return hi - lo < _WIDE_SHARE
    return hi < _WIDE * lo or hi < _NEGLIGIBLE * points.time_unit_s

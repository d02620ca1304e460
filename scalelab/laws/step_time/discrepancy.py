"""The discrepancy between a shape and the truth: its covariance between configurations.

The log error of a shape is the sum of four normal parts: one that is smooth in devices,
nodes and batch, so that neighbours share it; one that depends on the local batch alone
(a library chooses another algorithm at this size); one that depends on the placement
alone (these nodes, this topology); one of the single configuration. Together with the
spread between repeats and a normal prior of the shape's parameters, a curve is a
Gaussian process. Far from every measurement the first part has mean zero and its full
variance: it changes interpolations and makes extrapolations uncertain.

References
----------
Kennedy and O'Hagan 2001, *Bayesian calibration of computer models*, section 4.
Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, sections 2.7
(explicit basis functions) and 4.2 (Matern kernels).
"""

from __future__ import annotations

import numpy as np

from scalelab.laws.step_time.physics import Configurations

PARTS = ("smooth", "batch", "placement", "configuration")
NUM_PARTS = len(PARTS)
_LENGTH = 1.5  # doublings of devices, nodes, devices per node or batch
_BOUNDARY = 2.0  # lengths between one node and three
_PARALLEL = 1.0  # lengths between one device and two


def correlations(rows: Configurations, columns: Configurations) -> np.ndarray:
    """Return the correlation of each part between configurations.

    Returns
    -------
    ndarray, shape (4, n_rows, n_columns)
        In the order of :data:`PARTS`.
    """
    smooth = _smooth(rows, columns)
    return np.stack([smooth, *_matches(rows, columns)])


def covariances(
    rows: Configurations, columns: Configurations, variances: np.ndarray
) -> np.ndarray:
    """Return the sum of the parts with some variances, shape (n_rows, n_columns).

    It allocates no array for each part and computes in single precision, because it is
    called for many rows.
    """
    total = _smooth(rows, columns, np.float32)
    total *= np.float32(variances[0])
    for match, variance in zip(_matches(rows, columns), variances[1:], strict=True):
        np.add(total, np.float32(variance), out=total, where=match)
    return np.asarray(total, dtype=float)


def _smooth(
    rows: Configurations, columns: Configurations, dtype: type = float
) -> np.ndarray:
    """Return a Matern correlation of order 3/2, (n_rows, n_columns)."""
    first: np.ndarray = _features(rows).astype(dtype)
    second: np.ndarray = _features(columns).astype(dtype)
    distance = np.asarray(first @ (-2 * second.T))
    distance += (first**2).sum(axis=1)[:, None]
    distance += (second**2).sum(axis=1)
    np.sqrt(np.maximum(distance, 0.0, out=distance), out=distance)
    decay = np.exp(-distance)
    distance += 1
    distance *= decay
    return distance


def _matches(rows: Configurations, columns: Configurations) -> tuple[np.ndarray, ...]:
    """Tell where the batch, the placement and the whole configuration agree."""
    batch = _equal(rows.samples, columns.samples)
    placement = _equal(
        rows.world_size + 1j * rows.num_nodes,
        columns.world_size + 1j * columns.num_nodes,
    )
    same = batch & placement & _equal(rows.accumulation, columns.accumulation)
    return batch, placement, same


def _features(at: Configurations) -> np.ndarray:
    logs = np.log2(
        [
            at.world_size,
            at.num_nodes,
            at.world_size / at.num_nodes,
            at.samples,
            at.accumulation,
        ]
    )
    boundary = _BOUNDARY * np.minimum(at.num_nodes - 1, 2) / 2
    parallel = _PARALLEL * (at.world_size > 1)
    return np.column_stack([logs.T / _LENGTH, boundary, parallel])


def _equal(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    same = np.equal.outer(np.round(rows, 9), np.round(columns, 9))
    return np.asarray(same)

"""The step time of synchronous data-parallel training, as a pure function of arrays.

A step of ``A`` accumulated passes on ``n`` devices of ``m`` nodes, ``b`` samples each::

    C = compute_fixed + compute_per_sample * b ** compute_exponent
    S = 2 (n - 1) * latency + 2 (n - 1) / n * transfer         (0 for n = 1)
    T = (A - 1) C + (C ** g + S ** g) ** (1 / g),  g = 1 / (1 - overlap)

``latency`` and ``transfer`` are those of the slowest link a ring of all ranks crosses:
the network once ``m > 1`` (the node boundary), the links inside the node before.
Only the last of the ``A`` passes exchanges gradients and can hide the exchange.

References
----------
Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*, section 3.
Qiao et al. 2021, *Pollux*, equations 9 to 11 (overlap as a norm, accumulation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

NAMES = (
    "compute_fixed",
    "compute_per_sample",
    "intra_node_latency",
    "intra_node_transfer",
    "inter_node_latency",
    "inter_node_transfer",
    "overlap",
    "compute_exponent",
)
UNITS = {
    "compute_fixed": "s",
    "compute_per_sample": "s",
    "intra_node_latency": "s",
    "intra_node_transfer": "s",
    "inter_node_latency": "s",
    "inter_node_transfer": "s",
    "overlap": "1",
    "compute_exponent": "1",
}
LOWER = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3])
UPPER = np.array([np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, 0.95, 1.15])
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Configurations:
    """Configurations as arrays, each of shape (n_configurations,).

    ``samples`` is the local batch in any unit, e.g. divided by a reference batch.
    """

    world_size: np.ndarray
    num_nodes: np.ndarray
    samples: np.ndarray
    accumulation: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, batch_unit: float = 1.0) -> Configurations:
        """Read the completed configuration columns of a frame."""
        return cls(
            world_size=frame["world_size"].to_numpy(float),
            num_nodes=frame["num_nodes"].to_numpy(float),
            samples=frame["local_batch_size"].to_numpy(float) / batch_unit,
            accumulation=frame["gradient_accumulation_steps"].to_numpy(float),
        )

    @property
    def ring_messages(self) -> np.ndarray:
        """Sequential messages of a ring all-reduce."""
        return np.asarray(2 * (self.world_size - 1))

    @property
    def ring_volume(self) -> np.ndarray:
        """Gradient copies each rank sends in a ring all-reduce."""
        return np.asarray(2 * (self.world_size - 1) / self.world_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Parts of the step time, seconds, each of shape (n_draws, n_configurations)."""

    fixed: np.ndarray
    per_sample: np.ndarray
    exposed_sync: np.ndarray

    @property
    def step_time_s(self) -> np.ndarray:
        """The sum of the parts."""
        return np.asarray(self.fixed + self.per_sample + self.exposed_sync)


def terms(parameters: np.ndarray, at: Configurations) -> Terms:
    """Evaluate the law.

    Parameters
    ----------
    parameters : ndarray, shape (n_draws, 8)
        Columns in the order of :data:`NAMES`.
    at
        Where to evaluate.
    """
    fixed, slope, intra_l, intra_x, inter_l, inter_x, overlap, exponent = (
        column[:, None] for column in parameters.T
    )
    growing = np.asarray(slope * at.samples**exponent)
    compute = np.maximum(fixed + growing, _TINY)
    crosses = at.num_nodes > 1
    sync = at.ring_messages * np.where(crosses, inter_l, intra_l)
    sync = sync + at.ring_volume * np.where(crosses, inter_x, intra_x)
    exposed = _norm(compute, np.maximum(sync, _TINY), 1 / (1 - overlap)) - compute
    return Terms(
        fixed=at.accumulation * fixed,
        per_sample=at.accumulation * growing,
        exposed_sync=exposed,
    )


def step_time_s(parameters: np.ndarray, at: Configurations) -> np.ndarray:
    """Return the step time in seconds, shape (n_draws, n_configurations)."""
    return np.asarray(np.maximum(terms(parameters, at).step_time_s, _TINY))


def _norm(first: np.ndarray, second: np.ndarray, power: np.ndarray) -> np.ndarray:
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / larger
    return np.asarray(larger * (1 + ratio**power) ** (1 / power))

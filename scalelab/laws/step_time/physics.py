"""Ring all-reduce formulas for the physical parts of a data-parallel step.

A step of ``A`` accumulated passes on ``n`` devices of ``m`` nodes, ``b`` samples each::

    C = (compute_fixed + compute_per_sample * b ** compute_exponent) (1 + imbalance)
    S = sum over tiers of 2 (k - 1) * latency + 2 (k - 1) / k * transfer
    T = A C + exposed(S, C)

``imbalance``, the additional time of the slowest rank, is zero if ``n = 1``. Only the
last of the ``A`` passes exchanges gradients and can hide the exchange. How links within
and between nodes are combined, and how exchange and computation overlap, differs
between communication libraries. So there are two forms, and the parts of a step are
averaged over both, weighed by how well they fit. Step times are predicted by
:mod:`scalelab.laws.step_time.shapes` instead. The forms:

``TIERED``: a ring of ``k = n / m`` devices in each node, then one of ``k = m`` nodes;
up to a share ``overlap`` of the exchange hides behind the last pass.

``FLAT``: one ring of ``k = n`` devices as slow as its slowest link: between nodes once
``m > 1``, inside the node before; ``exposed = (C^g + S^g)^(1/g) - C`` with
``g = 1 / (1 - overlap)``: no overlap at ``g = 1``, complete overlap as ``g`` grows.

References
----------
Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*, section 3 (rings).
Qiao et al. 2021, *Pollux*, equations 9 to 11 (overlap as a norm, accumulation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
import pandas as pd

UNITS = {
    "compute_fixed": "s",
    "compute_per_sample": "s",
    "intra_node_latency": "s",
    "intra_node_transfer": "s",
    "inter_node_latency": "s",
    "inter_node_transfer": "s",
    "overlap": "1",
    "compute_exponent": "1",
    "imbalance": "1",
}
NAMES = tuple(UNITS)
NUM_TIMES = 6
UPPER = np.array([np.inf] * NUM_TIMES + [0.95, 1.15, 1.0])
NEUTRAL = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.3, 1.0, 0.0])
"""Values of parameters that the rows say nothing about."""
_TINY = 1e-30


class ExchangeForm(StrEnum):
    """How links join into an exchange, and how it overlaps with computation."""

    TIERED = "tiered"
    FLAT = "flat"


@dataclass(frozen=True, kw_only=True, slots=True)
class Configurations:
    """Configurations as arrays, each of shape (n_configurations,).

    ``samples`` are those that one device computes in a pass, in any unit, e.g. divided
    by a reference batch: the local batch, shared by the devices that see the same one.
    """

    world_size: np.ndarray
    num_nodes: np.ndarray
    samples: np.ndarray
    accumulation: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame, batch_unit: float = 1.0) -> Configurations:
        """Read the completed configuration columns of a frame."""
        world = frame["world_size"].to_numpy(float)
        parallel = frame.get("data_parallel_size", frame["world_size"]).to_numpy(float)
        local = frame["local_batch_size"].to_numpy(float)
        return cls(
            world_size=world,
            num_nodes=frame["num_nodes"].to_numpy(float),
            samples=local * (parallel / world) / batch_unit,
            accumulation=frame["gradient_accumulation_steps"].to_numpy(float),
        )

    def take(self, positions: np.ndarray) -> Configurations:
        """Return some of the configurations."""
        return Configurations(
            **{
                field.name: getattr(self, field.name)[positions]
                for field in fields(Configurations)
            }
        )

    def labels(self) -> list[bytes]:
        """Return one comparable value per configuration."""
        columns = (self.world_size, self.num_nodes, self.samples, self.accumulation)
        rounded = np.ascontiguousarray(np.round(np.column_stack(columns), 9))
        whole = rounded.view(f"V{rounded.itemsize * len(columns)}")
        return list(whole.ravel().tolist())

    def features(self, form: ExchangeForm) -> np.ndarray:
        """Return the factor of each time parameter, shape (n, 6).

        Without overlap, imbalance and exponent the step time is linear in these.
        """
        if form is ExchangeForm.TIERED:
            inner = np.ceil(self.world_size / self.num_nodes)
            outer = self.num_nodes
        else:
            crosses = self.num_nodes > 1
            inner = np.where(crosses, 1.0, self.world_size)
            outer = np.where(crosses, self.world_size, 1.0)
        columns = [
            self.accumulation,
            self.accumulation * self.samples,
            2 * (inner - 1),
            2 * (inner - 1) / inner,
            2 * (outer - 1),
            2 * (outer - 1) / outer,
        ]
        return np.column_stack(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Parts of the step time, seconds, each of shape (n_draws, n_configurations)."""

    fixed: np.ndarray
    per_sample: np.ndarray
    imbalance: np.ndarray
    intra_node: np.ndarray
    inter_node: np.ndarray

    @property
    def step_time_s(self) -> np.ndarray:
        """The sum of the parts."""
        compute = self.fixed + self.per_sample + self.imbalance
        return np.asarray(compute + self.intra_node + self.inter_node)


def joined(parts: Sequence[Terms]) -> Terms:
    """Join the draws of several forms."""
    return Terms(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(Terms)
        }
    )


def terms(parameters: np.ndarray, at: Configurations, form: ExchangeForm) -> Terms:
    """Split the step time into its parts; the exposed exchange is divided by tier.

    Parameters
    ----------
    parameters : ndarray, shape (n_draws, 9)
        Columns in the order of :data:`NAMES`.
    at
        The configurations.
    form
        One of the two forms.
    """
    fixed, slope = parameters[:, :1], parameters[:, 1:2]
    overlap, exponent, imbalance = (parameters[:, k, None] for k in (6, 7, 8))
    growing = np.asarray(slope * at.samples**exponent)
    waiting = (fixed + growing) * np.where(at.world_size > 1, imbalance, 0.0)
    features = at.features(form)
    intra = parameters[:, 2:4] @ features[:, 2:4].T
    inter = parameters[:, 4:6] @ features[:, 4:6].T
    compute = np.maximum(fixed + growing + waiting, _TINY)
    exchange = np.maximum(intra + inter, _TINY)
    share = _exposed(exchange, compute, overlap, form) / exchange
    return Terms(
        fixed=at.accumulation * fixed,
        per_sample=at.accumulation * growing,
        imbalance=at.accumulation * waiting,
        intra_node=share * intra,
        inter_node=share * inter,
    )


def step_time_s(
    parameters: np.ndarray, at: Configurations, form: ExchangeForm
) -> np.ndarray:
    """Return the step time in seconds, shape (n_draws, n_configurations)."""
    return np.asarray(np.maximum(terms(parameters, at, form).step_time_s, _TINY))


def _exposed(
    exchange: np.ndarray, compute: np.ndarray, overlap: np.ndarray, form: ExchangeForm
) -> np.ndarray:
    if form is ExchangeForm.TIERED:
        return np.asarray(exchange - np.minimum(overlap * exchange, compute))
    power = 1 / (1 - overlap)
    larger = np.maximum(compute, exchange)
    ratio = np.minimum(compute, exchange) / larger
    return np.asarray(larger * (1 + ratio**power) ** (1 - overlap) - compute)

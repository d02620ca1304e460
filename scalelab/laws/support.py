"""The measured range of a curve: what a prediction rests on, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import counted
from scalelab.inputs.support import Support
from scalelab.laws.step_time.physics import Configurations

_OF_MACHINE = ("intra_node_latency", "inter_node_latency")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Parameters that no row contains, and the trial that would measure them."""

    parameters: tuple[str, ...]
    why: str
    remedy: str
    world_size: int
    num_nodes: int
    local_batch_size: int
    data_parallel_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The measured range of one curve."""

    # The measured configurations; local batches in samples
    at: Configurations
    # Parameters that other curves of the same machine determine: no gap is reported for
    # these
    informed: frozenset[str]
    # Devices that see the same samples, usually
    devices_per_replica: float = 1.0

    @classmethod
    def of(cls, frame: pd.DataFrame, informed: frozenset[str]) -> Self:
        """Read the range off the rows of one curve, see :func:`step_time_rows`."""
        replicas = frame["world_size"] / frame["data_parallel_size"]
        return cls(
            at=Configurations.of(frame),
            informed=informed,
            devices_per_replica=float(replicas.median()),
        )

    def gaps(self) -> tuple[Gap, ...]:
        """Return the parameters that no row contains."""
        found = (self._intra_gap(), self._inter_gap(), self._compute_gap())
        return tuple(
            gap
            for gap in found
            if gap is not None and self.informed.isdisjoint(gap.parameters)
        )

    def determined(self) -> frozenset[str]:
        """Return the parameters of the machine that the rows contain."""
        every = {"intra_node_latency", "intra_node_transfer"}
        every |= {"inter_node_latency", "inter_node_transfer"}
        return frozenset(every.difference(*(gap.parameters for gap in self.gaps())))

    def gaps_at(self, query: Configurations) -> tuple[Gap, ...]:
        """Return the gaps that widen the prediction of some configuration."""
        open_at = self._open_at(query)
        return tuple(gap for gap in self.gaps() if open_at[gap.parameters[0]].any())

    def _batch(self) -> int:
        samples = float(np.median(self.at.samples))
        return max(1, round(samples * self.devices_per_replica))

    def _gap(
        self,
        names: tuple[str, ...],
        why: str,
        remedy: str,
        place: tuple[int, int],
        local_batch_size: int,
    ) -> Gap:
        """Return a gap that a trial on these devices and nodes would close."""
        devices, nodes = place
        return Gap(
            parameters=names,
            why=why,
            remedy=remedy,
            world_size=devices,
            num_nodes=nodes,
            local_batch_size=local_batch_size,
            data_parallel_size=max(1, round(devices / self.devices_per_replica)),
        )

    def _inter_gap(self) -> Gap | None:
        if self.at.crosses.any():
            return None
        per_node = int(self.at.per_node.max())
        return self._gap(
            ("inter_node_latency", "inter_node_transfer"),
            "no devices were measured on more than one node",
            f"Measure 2 nodes x {per_node}.",
            (2 * per_node, 2),
            self._batch(),
        )

    def _intra_gap(self) -> Gap | None:
        if self.at.is_shared.any():
            return None
        return self._gap(
            ("intra_node_latency", "intra_node_transfer"),
            "within a node no more than one device was measured",
            "Measure 1 node x 2.",
            (2, 1),
            self._batch(),
        )

    def _compute_gap(self) -> Gap | None:
        if len(np.unique(self.at.samples)) > 1:
            return None
        batch = self._batch()
        other = batch // 2 if batch > 1 else 2
        size = int(self.at.world_size.min())
        nodes = int(self.at.num_nodes[self.at.world_size == size].min())
        return self._gap(
            ("compute_fixed", "compute_per_sample"),
            f"only the local batch {batch} was measured",
            f"Measure local batch {other} on {counted(size, 'device')}.",
            (size, nodes),
            other,
        )

    def support(self, query: Configurations) -> np.ndarray:
        """Return a :class:`Support` value per configuration, shape (n,), as text."""
        known = set(self.at.labels())
        measured = [label in known for label in query.labels()]
        per_node = self.at.world_size / self.at.num_nodes
        outside = _outside(query.world_size / query.num_nodes, per_node)
        outside |= self.distance(query).max(axis=1, initial=0.0) > 1e-9
        kind = np.where(outside, Support.EXTRAPOLATED.value, Support.INTERPOLATED.value)
        open_at = self._open_at(query)
        for gap in self.gaps():
            if gap.parameters[0] in _OF_MACHINE:
                unknown = open_at[gap.parameters[0]]
                kind = np.where(unknown, Support.NOT_MEASURED.value, kind)
        return np.where(measured, Support.MEASURED.value, kind)

    def distance(self, query: Configurations) -> np.ndarray:
        """Return doublings of scale and batch beyond the measured range, (n, 2)."""
        across = query.crosses
        scale = np.where(
            across,
            _beyond(query.world_size, self._tier_range(across_nodes=True)),
            _beyond(query.world_size, self._tier_range(across_nodes=False)),
        )
        nodes = _beyond(query.num_nodes, self.at.num_nodes)
        batch = _beyond(query.samples, self.at.samples)
        return np.column_stack([np.maximum(scale, nodes), batch])

    def _tier_range(self, *, across_nodes: bool) -> np.ndarray:
        """Return the measured world sizes on one node or on several, or all of them."""
        sizes = self.at.world_size
        tier = sizes[(self.at.crosses == across_nodes) & (sizes > 1)]
        if across_nodes:
            return tier if len(tier) else sizes
        return np.append(tier, sizes.min())

    def _open_at(self, query: Configurations) -> dict[str, np.ndarray]:
        """Return, by the first parameter of a gap, which configurations need it."""
        return {
            "intra_node_latency": query.is_shared,
            "inter_node_latency": query.crosses,
            "compute_fixed": _outside(query.samples, self.at.samples),
        }


def _outside(values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    if not len(measured):
        return np.ones(len(values), dtype=bool)
    return np.asarray(
        (values < measured.min() * (1 - 1e-9)) | (values > measured.max() * (1 + 1e-9))
    )


def _beyond(values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    above = np.log2(values / measured.max())
    below = np.log2(measured.min() / values)
    return np.asarray(np.maximum(np.maximum(above, below), 0.0))

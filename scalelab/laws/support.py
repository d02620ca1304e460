"""The measured range of a curve: what a prediction rests on, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import pandas as pd

from scalelab.laws.step_time.physics import Configurations

_MIN_SIZES = 2  # of one tier: latency and transfer are two unknowns


class Support(StrEnum):
    """The basis of a prediction: measured, interpolated, extrapolated, unsupported."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Parameters that the rows do not determine, and the trial that would do it."""

    parameters: tuple[str, ...]
    why: str
    remedy: str
    world_size: int
    num_nodes: int
    local_batch_size: int
    data_parallel_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The measured range of one curve.

    Parameters
    ----------
    at
        The measured configurations; local batches in samples.
    informed
        Parameters that other curves of the same machine determine: no gap is reported
        for these.
    devices_per_replica
        Devices that see the same samples, usually.
    """

    at: Configurations
    informed: frozenset[str]
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

    def sizes(self, *, across_nodes: bool) -> np.ndarray:
        """Return measured world sizes above 1, on one node or on several, sorted."""
        tier = (self.at.num_nodes > 1) == across_nodes
        return np.unique(self.at.world_size[tier & (self.at.world_size > 1)])

    def gaps(self) -> tuple[Gap, ...]:
        """Return the parameters for which too few configurations were measured."""
        found = (self._intra_gap(), self._inter_gap(), self._compute_gap())
        return tuple(
            gap
            for gap in found
            if gap is not None and self.informed.isdisjoint(gap.parameters)
        )

    def determined(self) -> frozenset[str]:
        """Return the parameters that the measured configurations determine."""
        every = {"intra_node_latency", "intra_node_transfer"}
        every |= {"inter_node_latency", "inter_node_transfer"}
        every |= {"compute_fixed", "compute_per_sample"}
        return frozenset(every.difference(*(gap.parameters for gap in self.gaps())))

    def blocking(self, query: Configurations) -> tuple[Gap, ...]:
        """Return the gaps because of which some configuration cannot be predicted."""
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

    def _devices_on_node(self) -> int:
        return int(np.max(np.ceil(self.at.world_size / self.at.num_nodes)))

    def _inter_gap(self) -> Gap | None:
        sizes = self.sizes(across_nodes=True)
        if len(sizes) >= _MIN_SIZES:
            return None
        per_node = self._devices_on_node()
        measured = self.at.num_nodes[self.at.num_nodes > 1]
        nodes = 2 if not len(measured) or measured.min() > 2 else 4
        seen = f"only {int(sizes[0])} devices" if len(sizes) else "no devices"
        return self._gap(
            ("inter_node_latency", "inter_node_transfer"),
            f"{seen} were measured on more than one node",
            f"Measure {nodes} nodes x {per_node}.",
            (nodes * per_node, nodes),
            self._batch(),
        )

    def _intra_gap(self) -> Gap | None:
        sizes = self.sizes(across_nodes=False)
        if len(sizes) >= _MIN_SIZES:
            return None
        devices = 2 if not len(sizes) or sizes[0] > 2 else int(2 * sizes[0])
        seen = "no more than one device was"
        if len(sizes):
            seen = f"only {int(sizes[0])} devices were"
        return self._gap(
            ("intra_node_latency", "intra_node_transfer"),
            f"within a node {seen} measured",
            f"Measure 1 node x {devices}.",
            (devices, 1),
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
            f"Measure local batch {other} on {size} device(s).",
            (size, nodes),
            other,
        )

    def support(self, query: Configurations) -> np.ndarray:
        """Return a :class:`Support` value per configuration, shape (n,), as text."""
        measured = self._is_measured(query)
        outside = self._is_beyond(query)
        kind = np.where(outside, Support.EXTRAPOLATED.value, Support.INTERPOLATED.value)
        open_at = [np.zeros(len(measured), dtype=bool), *self._open_at(query).values()]
        unknown = np.logical_or.reduce(open_at) & ~measured
        kind = np.where(unknown, Support.UNSUPPORTED.value, kind)
        return np.where(measured, Support.MEASURED.value, kind)

    def distance(self, query: Configurations) -> np.ndarray:
        """Return doublings of scale and batch beyond the measured range, (n, 2)."""
        across = query.num_nodes > 1
        scale = np.where(
            across,
            _beyond(query.world_size, self._tier_range(across_nodes=True)),
            _beyond(query.world_size, self._tier_range(across_nodes=False)),
        )
        nodes = _beyond(query.num_nodes, self.at.num_nodes)
        batch = _beyond(query.samples, self.at.samples)
        return np.column_stack([np.maximum(scale, nodes), batch])

    def surrounds(self, query: Configurations) -> np.ndarray:
        """Tell which configurations lie inside the measured range of every axis.

        The number of accumulated passes is such an axis here. For :meth:`support` it is
        none, because the formulas say what further passes cost; a regressor does not.
        """
        passes = _outside(query.accumulation, self.at.accumulation)
        return np.asarray(~(self._is_beyond(query) | passes))

    def _is_beyond(self, query: Configurations) -> np.ndarray:
        per_node = self.at.world_size / self.at.num_nodes
        fuller = _outside(query.world_size / query.num_nodes, per_node)
        far = self.distance(query).max(axis=1, initial=0.0) > 1e-9
        return np.asarray(far | fuller)

    def _tier_range(self, *, across_nodes: bool) -> np.ndarray:
        sizes = self.sizes(across_nodes=across_nodes)
        if across_nodes:
            return sizes if len(sizes) else self.at.world_size
        return np.append(sizes, self.at.world_size.min())

    def _is_measured(self, query: Configurations) -> np.ndarray:
        known = set(_labels(self.at))
        return np.array([label in known for label in _labels(query)], dtype=bool)

    def _open_at(self, query: Configurations) -> dict[str, np.ndarray]:
        """Return, by gap, which configurations need one of its parameters."""
        across = query.num_nodes > 1
        inner = np.append(1.0, self.sizes(across_nodes=False))
        outer = self.sizes(across_nodes=True)
        needs = {
            "intra_node_latency": ~across & _outside(query.world_size, inner),
            "inter_node_latency": across & _outside(query.world_size, outer),
            "compute_fixed": _outside(query.samples, self.at.samples),
        }
        return {gap.parameters[0]: needs[gap.parameters[0]] for gap in self.gaps()}


def _labels(at: Configurations) -> list[bytes]:
    """Return one comparable value per configuration."""
    columns = (at.world_size, at.num_nodes, at.samples, at.accumulation)
    rounded = np.ascontiguousarray(np.round(np.column_stack(columns), 9))
    return list(rounded.view(f"V{rounded.itemsize * len(columns)}").ravel().tolist())


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

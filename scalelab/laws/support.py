"""The measured range of a curve: what a prediction rests on, and what is unknown."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.physics import Configurations

_INTRA = ("intra_node_latency", "intra_node_transfer")
_INTER = ("inter_node_latency", "inter_node_transfer")
_COMPUTE = ("compute_fixed", "compute_per_sample")


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
        at, found = self.at, []
        batch = max(1, round(float(np.median(at.samples)) * self.devices_per_replica))
        if not at.is_shared.any():
            why = "within a node no more than one device was measured"
            found.append(self._gap(_INTRA, why, "1 node x 2", (2, 1), batch))

        if not at.crosses.any():
            why = "no devices were measured on more than one node"
            per_node = int(at.per_node.max())
            place = (2 * per_node, 2)
            found.append(self._gap(_INTER, why, f"2 nodes x {per_node}", place, batch))

        if len(np.unique(at.samples)) == 1:
            why = f"only the local batch {batch} was measured"
            other = batch // 2 if batch > 1 else 2
            size = int(at.world_size.min())
            place = (size, int(at.num_nodes[at.world_size == size].min()))
            trial = f"local batch {other} on {counted(size, 'device')}"
            found.append(self._gap(_COMPUTE, why, trial, place, other))

        return tuple(gap for gap in found if self.informed.isdisjoint(gap.parameters))

    def _gap(
        self,
        names: tuple[str, ...],
        why: str,
        trial: str,
        place: tuple[int, int],
        local_batch_size: int,
    ) -> Gap:
        devices, nodes = place
        return Gap(
            parameters=names,
            why=why,
            remedy=f"Measure {trial}.",
            world_size=devices,
            num_nodes=nodes,
            local_batch_size=local_batch_size,
            data_parallel_size=max(1, round(devices / self.devices_per_replica)),
        )

    def determined(self) -> frozenset[str]:
        """Return the parameters of the machine that the rows contain."""
        missing = (gap.parameters for gap in self.gaps())
        return frozenset({*_INTRA, *_INTER}.difference(*missing))

    def gaps_at(self, query: Configurations) -> tuple[Gap, ...]:
        """Return the gaps that widen the prediction of some configuration."""
        open_at = self._open_at(query)
        return tuple(gap for gap in self.gaps() if open_at[gap.parameters].any())

    def support(self, query: Configurations) -> np.ndarray:
        """Return a :class:`Support` value per configuration, shape (n,), as text."""
        known = set(self.at.labels())
        measured = [label in known for label in query.labels()]
        per_node = self.at.world_size / self.at.num_nodes
        outside = _outside(query.world_size / query.num_nodes, per_node)
        outside |= self.distance(query).max(axis=1, initial=0.0) > 1e-9
        # whether every pass exchanges gradients, or the last alone, was not seen
        accumulated = self.at.accumulation[self.at.is_parallel].max(initial=1) > 1
        outside |= query.is_parallel & (query.accumulation > 1) & (not accumulated)
        kind = np.where(outside, Support.EXTRAPOLATED.value, Support.INTERPOLATED.value)

        open_at = self._open_at(query)
        for gap in self.gaps():
            if gap.parameters != _COMPUTE:
                unknown = open_at[gap.parameters]
                kind = np.where(unknown, Support.NOT_MEASURED.value, kind)

        return np.where(measured, Support.MEASURED.value, kind)

    def distance(self, query: Configurations) -> np.ndarray:
        """Return doublings of scale and batch beyond the measured range, (n, 2)."""
        at, sizes = self.at, self.at.world_size
        across = sizes[at.crosses] if at.crosses.any() else sizes
        within = np.append(sizes[~at.crosses & at.is_parallel], sizes.min())
        scale = np.where(
            query.crosses,
            _beyond(query.world_size, across),
            _beyond(query.world_size, within),
        )
        nodes = _beyond(query.num_nodes, at.num_nodes)
        batch = _beyond(query.samples, at.samples)
        return np.column_stack([np.maximum(scale, nodes), batch])

    def _open_at(self, query: Configurations) -> dict[tuple[str, ...], np.ndarray]:
        return {
            _INTRA: query.is_shared,
            _INTER: query.crosses,
            _COMPUTE: _outside(query.samples, self.at.samples),
        }


def _outside(values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    below = values < measured.min() * (1 - 1e-9)
    return np.asarray(below | (values > measured.max() * (1 + 1e-9)))


def _beyond(values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    above = np.log2(values / measured.max())
    below = np.log2(measured.min() / values)
    return np.asarray(np.maximum(np.maximum(above, below), 0.0))


def weakest(*parts: np.ndarray) -> np.ndarray:
    """Return the weakest support of the parts of a sum or product, as text.

    Parameters
    ----------
    parts : ndarray of :class:`Support` values, each of shape (n,)
    """
    order = [str(support) for support in Support]
    rows = zip(*parts, strict=True)
    return np.array([max(map(str, row), key=order.index) for row in rows], dtype=object)

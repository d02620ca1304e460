"""The configurations of a step: devices, nodes, samples and accumulated passes."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pandas as pd

NEVER = -60.0  # the log of a cost that no float shows


@dataclass(frozen=True, kw_only=True)
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
    def of(cls, frame: pd.DataFrame, batch_unit: float = 1.0) -> Self:
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

    @cached_property
    def per_node(self) -> np.ndarray:
        """Devices of the fullest node."""
        return np.asarray(np.ceil(self.world_size / self.num_nodes - 1e-9))

    @cached_property
    def is_parallel(self) -> np.ndarray:
        """Whether there are several devices."""
        return self.world_size > 1

    @cached_property
    def is_shared(self) -> np.ndarray:
        """Whether several devices are on one node."""
        return self.per_node > 1

    @cached_property
    def crosses(self) -> np.ndarray:
        """Whether there are several nodes."""
        return self.num_nodes > 1

    @cached_property
    def log_samples(self) -> np.ndarray:
        """Log of the samples."""
        return np.asarray(np.log(self.samples))

    @cached_property
    def log_samples_of_all(self) -> np.ndarray:
        """Log of the samples of a step, on all devices and in all passes."""
        return np.asarray(np.log(self.world_size * self.samples * self.accumulation))

    @cached_property
    def log_passes_before(self) -> np.ndarray:
        """Log of the passes before the one that exchanges gradients."""
        return np.asarray(np.log(np.maximum(self.accumulation - 1, np.exp(NEVER))))

    @cached_property
    def log_ring(self) -> np.ndarray:
        """Log of what each member of one ring of all devices sends, in gradients."""
        return _log_ring(self.world_size)

    @cached_property
    def log_ring_in_node(self) -> np.ndarray:
        """The same of a ring of the devices on a node."""
        return _log_ring(self.per_node)

    @cached_property
    def log_pairs(self) -> np.ndarray:
        """Log of the pairs of devices, at least one."""
        return np.asarray(np.log(np.maximum(self.world_size, 2) / 2))

    @cached_property
    def log_pairs_in_node(self) -> np.ndarray:
        """Log of the pairs of devices on a node, of which there may be half a one."""
        return np.asarray(np.log(np.maximum(self.per_node, 1) / 2))

    @cached_property
    def crossing(self) -> np.ndarray:
        """What an exchange between nodes grows with, shape (n_configurations, 3).

        Log devices per node, log pairs of nodes, and whether there are exactly two.
        """
        return np.column_stack(
            [
                np.log(self.world_size / self.num_nodes),
                np.log(np.maximum(self.num_nodes, 2) / 2),
                self.num_nodes == 2,
            ]
        )

    def take(self, positions: np.ndarray) -> Self:
        """Return some of the configurations."""
        return replace(
            self,
            world_size=self.world_size[positions],
            num_nodes=self.num_nodes[positions],
            samples=self.samples[positions],
            accumulation=self.accumulation[positions],
        )

    @cached_property
    def columns(self) -> np.ndarray:
        """What makes a configuration, shape (n_configurations, 4)."""
        columns = (self.world_size, self.num_nodes, self.samples, self.accumulation)
        return np.round(np.column_stack(columns), 9)

    def labels(self) -> list[bytes]:
        """Return one comparable value per configuration."""
        rounded = np.ascontiguousarray(self.columns)
        whole = rounded.view(f"V{rounded.itemsize * rounded.shape[1]}")
        return list(whole.ravel().tolist())


def _log_ring(members: np.ndarray) -> np.ndarray:
    members = np.maximum(members, 2)
    return np.asarray(np.log(2 * (members - 1) / members))

"""The configurations of a step: devices, nodes, samples and accumulated passes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pandas as pd


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

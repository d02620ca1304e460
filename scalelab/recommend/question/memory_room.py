"""The configurations that fit into the memory of their devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.laws.memory.law import MemoryLaw
from scalelab.laws.rows import numbers
from scalelab.recommend.answer.facts import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRoom:
    """The memory law of the observations, and the memory of a device."""

    law: MemoryLaw
    # The least memory that a rank had; None if no row recorded it
    capacity_bytes: float | None

    @classmethod
    def of(cls, frame: pd.DataFrame) -> MemoryRoom:
        """Fit the law to the rows of one kind of device, and read its memory."""
        sizes = numbers(frame, "gpu_memory_bytes")
        known = sizes[np.isfinite(sizes) & (sizes > 0)]
        return cls(
            law=MemoryLaw.fit(frame),
            capacity_bytes=float(known.min()) if len(known) else None,
        )

    def fits(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which configurations fit, because they ran or by measured peaks.

        Without measured peaks and capacity, a configuration fits only if its local
        batch ran on as many ranks or fewer. A local batch that ran out of memory on as
        many ranks or more does not fit.
        """
        within = asked["local_batch_size"].to_numpy() <= self.largest(asked)
        return np.asarray(within, dtype=bool)

    def largest(self, asked: pd.DataFrame) -> np.ndarray:
        """Return the largest local batch that fits of each, 0: none, shape (n,)."""
        answer = self.law.largest_local_batch(asked, self.capacity_bytes)
        return answer["largest_local_batch"].to_numpy(int)

    def notes(self, configuration: pd.DataFrame) -> Iterator[Fact]:
        """Note that the local batch of a configuration was not tried."""
        tried = self.law.largest_local_batch(configuration)["largest_fitting"].item()
        batch = configuration["local_batch_size"].item()
        if self.capacity_bytes is not None and batch > tried:
            values = {
                "local_batch_size": batch,
                "peak_bytes": self.law.predict(configuration)["peak_bytes"].item(),
                "capacity_bytes": self.capacity_bytes,
            }
            yield Fact("not_tried", values)

"""Which configurations have room on their devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import number
from scalelab.laws.memory.law import MemoryLaw
from scalelab.laws.rows import numbers

_GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRoom:
    """What is known of the need for memory, and how much of it a device has.

    Parameters
    ----------
    law
        Batches that ran and that did not, and measured peaks.
    capacity_bytes
        The least that a rank was seen to have; None where no row says.
    """

    law: MemoryLaw
    capacity_bytes: float | None

    @classmethod
    def of(cls, frame: pd.DataFrame) -> MemoryRoom:
        """Read it off the rows of one kind of device."""
        sizes = numbers(frame, "gpu_memory_bytes")
        known = sizes[np.isfinite(sizes) & (sizes > 0)]
        return cls(
            law=MemoryLaw.fit(frame),
            capacity_bytes=float(known.min()) if len(known) else None,
        )

    def fits(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which configurations ran, or must fit by what ran or was measured.

        Where no peaks or no capacity were measured, only what ran on as many ranks or
        fewer fits; nothing fits that ran out of memory there or on more.
        """
        answer = self.law.largest_local_batch(asked, self.capacity_bytes)
        within = asked["local_batch_size"] <= answer["largest_local_batch"]
        return within.to_numpy(bool)

    def notes(self, configuration: pd.DataFrame, device_word: str) -> tuple[str, ...]:
        """Say what one configuration rests on that was not tried."""
        tried = self.law.largest_local_batch(configuration)["largest_fitting"].item()
        batch = configuration["local_batch_size"].item()
        if self.capacity_bytes is None or batch <= tried:
            return ()
        peak_bytes = self.law.predict(configuration)["peak_bytes"].item()
        return (
            f"Not tried: local batch {batch} there; by measured peaks it takes "
            f"{number(peak_bytes / _GIB)} of the {number(self.capacity_bytes / _GIB)} "
            f"GiB of a {device_word}.",
        )

"""Rank options: parameters that apply to every workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalelab.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """Options of a rank, set among the workload's parameters or as an axis.

    Parameters
    ----------
    memory_limit_bytes
        Bytes a CPU rank may allocate for model, gradients and activations; beyond them
        it is out of memory. Plays the part of a GPU's memory.
    prefetch
        Micro-batches that are read ahead, by each of these processes or without them by
        a thread; None: 2 with processes, as a ``DataLoader`` does, else 0.
    pin_memory
        Copy batches to a CUDA device from page-locked memory; None: there, yes.
    """

    memory_limit_bytes: int | None = None
    loader_workers: int = 0
    prefetch: int | None = None
    pin_memory: bool | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        counts = (("memory_limit_bytes", 1), ("loader_workers", 0), ("prefetch", 0))
        for name, least in counts:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise SpecError(
                    f"{name}={value!r} must be a whole number, at least {least}."
                )
        if not isinstance(self.compile, bool):
            raise SpecError(f"compile={self.compile!r} must be true or false.")
        if not isinstance(self.pin_memory, bool | None):
            raise SpecError(f"pin_memory={self.pin_memory!r} must be true or false.")
        if self.loader_workers and self.prefetch == 0:
            raise SpecError(
                f"prefetch=0 and loader_workers={self.loader_workers} contradict each "
                "other: a loader process always reads ahead. Set prefetch to at least "
                "1, or loader_workers to 0."
            )

    def pins_memory(self, device_type: str) -> bool:
        """Tell whether batches are copied from page-locked memory."""
        is_cuda = device_type == "cuda"
        if self.pin_memory and not is_cuda:
            raise SpecError(
                f"pin_memory=True has no effect on {device_type} devices. Leave it out."
            )
        return is_cuda and self.pin_memory is not False

    @classmethod
    def split(cls, parameters: Mapping[str, Any]) -> tuple[RankOptions, dict[str, Any]]:
        """Return the rank's options and the parameters left for the workload.

        >>> RankOptions.split({"loader_workers": 2, "depth": 20})[1]
        {'depth': 20}
        """
        own = {name: parameters[name] for name in cls.__slots__ if name in parameters}
        rest = {name: parameters[name] for name in parameters if name not in own}
        return cls(**own), rest

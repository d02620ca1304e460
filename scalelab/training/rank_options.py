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
    loader_workers
        Processes per rank that read training data which are not in memory.
    compile
        Train the model as ``torch.compile`` translates it, before the first step.
    """

    memory_limit_bytes: int | None = None
    loader_workers: int = 0
    compile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("memory_limit_bytes", 1), ("loader_workers", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise SpecError(
                    f"{name}={value!r} must be a whole number, at least {least}."
                )
        if not isinstance(self.compile, bool):
            raise SpecError(f"compile={self.compile!r} must be true or false.")

    @classmethod
    def split(cls, parameters: Mapping[str, Any]) -> tuple[RankOptions, dict[str, Any]]:
        """Return the rank's options and the parameters left for the workload.

        >>> RankOptions.split({"loader_workers": 2, "depth": 20})[1]
        {'depth': 20}
        """
        own = {name: parameters[name] for name in cls.__slots__ if name in parameters}
        rest = {name: parameters[name] for name in parameters if name not in own}
        return cls(**own), rest

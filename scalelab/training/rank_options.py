"""Rank options: parameters that apply to every workload."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from scalelab.errors import SpecError
from scalelab.inputs.problems import one_of, shown

OPTIMIZERS = ("sgd", "adam", "adamw")
OF_MODELS = ("compile", "optimizer", "momentum", "weight_decay")
"""Options that act on a model."""


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
    optimizer, momentum, weight_decay
        What replaces the workload's own, see ``training.optimizers``; None: nothing.
    """

    memory_limit_bytes: int | None = None
    loader_workers: int = 0
    prefetch: int | None = None
    pin_memory: bool | None = None
    compile: bool = False
    optimizer: str | None = None
    momentum: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        counts = (("memory_limit_bytes", 1), ("loader_workers", 0), ("prefetch", 0))
        for name, least in counts:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise SpecError(
                    f"{name}={value!r} must be a whole number, at least {least}.",
                    code="not_a_count",
                )

        if not isinstance(self.compile, bool):
            raise SpecError(
                f"compile={self.compile!r} must be true or false.", code="not_a_flag"
            )
        if not isinstance(self.pin_memory, bool | None):
            raise SpecError(
                f"pin_memory={self.pin_memory!r} must be true or false.",
                code="not_a_flag",
            )

        self._check_optimizer()
        if self.loader_workers and self.prefetch == 0:
            raise SpecError(
                f"prefetch=0 and loader_workers={self.loader_workers} contradict each "
                "other: a loader process always reads ahead. Set prefetch to at least "
                "1, or loader_workers to 0.",
                code="prefetch_without_reader",
            )

    def _check_optimizer(self) -> None:
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            known = one_of(OPTIMIZERS, str(self.optimizer))
            raise SpecError(
                f"optimizer={shown(self.optimizer)} is not known. {known}",
                code="unknown_optimizer",
            )

        for name, below in (("momentum", 1.0), ("weight_decay", math.inf)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value < below):
                limit = " and below 1" if below == 1 else ""
                raise SpecError(
                    f"{name}={shown(value)} must be a number, at least 0{limit}.",
                    code="not_a_number",
                )

    def pins_memory(self, device_type: str) -> bool:
        """Tell whether batches are copied from page-locked memory."""
        is_cuda = device_type == "cuda"
        if self.pin_memory and not is_cuda:
            raise SpecError(
                f"pin_memory=True has no effect on {device_type} devices. Leave it "
                "out.",
                code="option_without_effect",
            )
        return is_cuda and self.pin_memory is not False

    @classmethod
    def split(
        cls, parameters: Mapping[str, Any], of_workload: Collection[str] = ()
    ) -> tuple[Self, dict[str, Any]]:
        """Return the rank's options and the parameters left for the workload.

        A name that the workload itself takes is the workload's.

        >>> RankOptions.split({"loader_workers": 2, "depth": 20})[1]
        {'depth': 20}
        """
        of_rank = {
            name: parameters[name]
            for name in cls.__slots__
            if name in parameters and name not in of_workload
        }
        rest = {name: parameters[name] for name in parameters if name not in of_rank}
        return cls(**of_rank), rest

"""The number format that a training computes in, by torch's autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from scalelab.errors import SpecError

AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class NumberFormat:
    """The number format of forward passes; parameters and their updates stay fp32."""

    def __init__(self, precision: str, device_type: str) -> None:
        if precision not in AUTOCAST_DTYPES:
            raise SpecError(
                f"precision={precision!r} does not exist. Choose from: "
                f"{', '.join(sorted(AUTOCAST_DTYPES))}."
            )
        self._dtype = AUTOCAST_DTYPES[precision]
        self._device_type = device_type

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes use the format."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a scaler of losses, which does something for fp16 alone."""
        return torch.amp.GradScaler(
            self._device_type, enabled=self._dtype is torch.float16
        )

"""The ways to spread a model, by the name an experiment uses."""

from __future__ import annotations

import torch
from torch import nn

from scalelab.errors import SpecError
from scalelab.training.engines.ddp import Ddp
from scalelab.training.engines.spread import Observers, Parallelism

PARALLELISMS = {"ddp": Ddp}


def spread(
    name: str, model: nn.Module, device: torch.device, observers: Observers
) -> Parallelism:
    """Spread a model over the ranks of the process group.

    Raises
    ------
    SpecError
        If there is no parallelism of that name.
    """
    if name not in PARALLELISMS:
        raise SpecError(
            f"parallelism={name!r} does not exist. Choose from: "
            f"{', '.join(sorted(PARALLELISMS))}."
        )
    return PARALLELISMS[name](model, device, observers)

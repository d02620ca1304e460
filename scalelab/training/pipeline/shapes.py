"""What passes between the stages of a pipeline, found by one pass through it.

torch can find it out as well, but sends objects that the receiving rank executes.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from scalelab.errors import SpecError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_DIMENSIONS = 8


def passed_between_stages(
    stage: nn.Module, inputs: torch.Tensor, group: ProcessGroup, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of what enters and what leaves this rank's stage.

    All ranks of the group take part, each in its turn. Between stages, both require a
    gradient.
    """
    own, received = dist.get_rank(group), inputs
    for index in range(dist.get_world_size(group)):
        written = torch.zeros(_MOST_DIMENSIONS + 2, dtype=torch.int64, device=device)
        if index == own:
            output = stage(received)
            _check(output, len(received), index)
            written.copy_(_written(output))
        dist.broadcast(written, dist.get_global_rank(group, index), group)
        if index + 1 == own:
            received = _read(written.tolist(), device)
    return received, output.detach().requires_grad_()


def _check(output: object, num_samples: int, index: int) -> None:
    if (
        not isinstance(output, torch.Tensor)
        or output.dtype not in _DTYPES
        or output.dim() > _MOST_DIMENSIONS
        or output.shape[:1] != (num_samples,)
    ):
        shape = tuple(getattr(output, "shape", ()))
        raise SpecError(
            f"parallelism=pipeline: stage {index} returns {type(output).__name__} "
            f"{shape} for {num_samples} samples. Return one floating-point tensor "
            "whose first dimension is the samples."
        )


def _written(tensor: torch.Tensor) -> torch.Tensor:
    shape = [*tensor.shape] + [0] * (_MOST_DIMENSIONS - tensor.dim())
    return torch.tensor([_DTYPES.index(tensor.dtype), tensor.dim(), *shape])


def _read(numbers: list[int], device: torch.device) -> torch.Tensor:
    dtype, num_dimensions, *shape = numbers
    return torch.zeros(
        shape[:num_dimensions],
        dtype=_DTYPES[dtype],
        device=device,
        requires_grad=True,
    )

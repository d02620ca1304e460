"""A stage of torch's pipelines, timed, and what enters and leaves stages."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import P2POp, ProcessGroup
from torch.distributed.pipelining import PipelineStage

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.probes.meter import Phase


class TimedStage(PipelineStage):
    """A stage that marks when it computes, and when it waits for another."""

    def __init__(
        self,
        *arguments: Any,
        mark: Callable[[Phase], None],
        autocast: Callable[[], AbstractContextManager[Any]],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._mark = mark
        self._autocast = autocast

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute a forward pass."""
        with self._timed(), self._autocast():
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute a backward pass."""
        with self._timed():
            return super().backward_one_chunk(*arguments, **named)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._mark(Phase.EXPOSED_SYNC)
        try:
            yield
        except RuntimeError as error:
            # torch hides what a forward pass raised, such as a lack of memory.
            raise error.__cause__ or error from None
        self._mark(Phase.COMPUTE)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        """Return what is sent to the next stage."""
        return _contiguous(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        """Return what is sent to the stage before."""
        return _contiguous(super().get_bwd_send_ops(bwd_chunk_id))


def _contiguous(operations: list[P2POp]) -> list[P2POp]:
    """Return the operations; neither gloo nor NCCL sends tensors with gaps."""
    for operation in operations:
        operation.tensor = operation.tensor.contiguous()
    return operations


OfModel = Callable[[nn.Module, Batch], Any]
"""What a workload computes of a model and a batch: a loss, or sums of metrics."""


class _Called(Exception):
    """The model was called."""


class _Recorder(nn.Module):
    """Stands for the model where only its input is wanted."""

    def forward(self, *inputs: Any, **named: Any) -> None:
        if len(inputs) != 1 or named or not isinstance(inputs[0], torch.Tensor):
            raise SpecError(
                f"parallelism=pipeline: the model is called with {len(inputs)} "
                f"positional and {len(named)} named values. Call it with one tensor "
                "in loss() and evaluate() of the workload, or train with ddp or fsdp."
            )
        raise _Called(inputs[0])


class _Computed(nn.Module):
    """Stands for the model that has computed its output already."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self.num_calls = 0
        self._output = output

    def forward(self, *inputs: Any) -> torch.Tensor:
        self.num_calls += 1
        return self._output


def input_of_model(compute: OfModel, batch: Batch) -> torch.Tensor:
    """Return the tensor with which a workload calls its model for a batch."""
    try:
        compute(_Recorder(), batch)
    except _Called as called:
        tensor: torch.Tensor = called.args[0]
        return tensor
    raise _not_called_once(0)


def of_output(compute: OfModel, output: torch.Tensor, batch: Batch) -> Any:
    """Return what a workload computes of the model's output for a batch."""
    model = _Computed(output)
    result = compute(model, batch)
    if model.num_calls != 1:
        raise _not_called_once(model.num_calls)
    return result


def _not_called_once(num_calls: int) -> SpecError:
    return SpecError(
        f"parallelism=pipeline: the workload calls its model {num_calls} times for a "
        "batch. Call it once in loss() and in evaluate(), or train with ddp or fsdp."
    )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_DIMENSIONS = 8


def passed_between_stages(
    stage: nn.Module, inputs: torch.Tensor, group: ProcessGroup, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of what enters and what leaves this rank's stage.

    All ranks of the group take part, each in its turn. Between stages, both require a
    gradient. torch can find it out as well, but sends objects that the receiving rank
    executes.
    """
    rank, received = dist.get_rank(group), inputs
    for index in range(dist.get_world_size(group)):
        written = torch.zeros(_MOST_DIMENSIONS + 2, dtype=torch.int64, device=device)
        if index == rank:
            output = stage(received)
            _check(output, len(received), index)
            shape = [*output.shape] + [0] * (_MOST_DIMENSIONS - output.dim())
            kind = _DTYPES.index(output.dtype)
            written.copy_(torch.tensor([kind, output.dim(), *shape]))

        dist.broadcast(written, dist.get_global_rank(group, index), group)
        if index + 1 == rank:
            kind, num_dimensions, *shape = written.tolist()
            received = torch.zeros(
                shape[:num_dimensions],
                dtype=_DTYPES[kind],
                device=device,
                requires_grad=True,
            )
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

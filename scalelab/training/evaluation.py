"""Held-out metrics: exact sums over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalelab.training.context import RankContext
from scalelab.training.feed import Batch

BatchSums = Callable[[Batch], Mapping[str, Any]]


def evaluate(
    context: RankContext,
    step: int,
    batches: Iterator[tuple[Batch, int]],
    batch_sums: BatchSums,
) -> dict[str, float]:
    """Return metrics over all ranks' held-out samples, on rank 0; {} on the others.

    Parameters
    ----------
    context
        The rank.
    step
        Told to the supervisor with every batch.
    batches
        This rank's batches and their numbers of samples; no sample is on two ranks. One
        of 0 samples is computed, since other ranks need the pass, and not counted.
    batch_sums
        Returns each metric summed over the samples of a batch.
    """
    sums: dict[str, Any] = {}
    num_samples = 0
    with torch.no_grad():
        for batch, size in batches:
            of_batch = batch_sums(batch)
            for name, value in of_batch.items() if size else ():
                sums[name] = sums.get(name, 0.0) + _double(value)
            num_samples += size
            context.progress(step)
    own = {name: float(value) for name, value in sums.items()}
    everybody = context.gather((num_samples, own))
    total = sum(size for size, _ in everybody)
    names = {name for _, values in everybody for name in values}
    return {
        name: math.fsum(values.get(name, 0.0) for _, values in everybody) / total
        for name in sorted(names)
    }


def _double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)


def share_buffers(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the first one's buffers, such as batch-norm statistics.

    Parameters
    ----------
    model
        The same on every rank.
    group
        The ranks; None: all there are.
    """
    first = 0 if group is None else dist.get_global_rank(group, 0)
    buffers = list(model.buffers())
    for dtype in {buffer.dtype for buffer in buffers}:
        alike = [buffer for buffer in buffers if buffer.dtype == dtype]
        flat = torch.cat([buffer.reshape(-1) for buffer in alike])
        dist.broadcast(flat, src=first, group=group)
        parts = torch.split(flat, [buffer.numel() for buffer in alike])
        for buffer, part in zip(alike, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

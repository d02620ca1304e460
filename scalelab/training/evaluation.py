"""Held-out metrics: exact sums over all ranks; and what they say of each class."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalelab.training.context import RankContext
from scalelab.training.feed import Batch
from scalelab.training.workloads.base import CONFUSION_MATRIX

MAX_CLASSES_SHOWN = 100
BatchSums = Callable[[Batch], Mapping[str, Any]]


def evaluate(
    context: RankContext,
    step: int,
    batches: Iterator[tuple[Batch, int]],
    batch_sums: BatchSums,
) -> dict[str, Any]:
    """Return metrics over all ranks' held-out samples, on rank 0; {} on the others.

    A confusion matrix is among them where the workload gives one, as a tensor.
    """
    sums: dict[str, Any] = {}
    num_samples = 0
    with torch.no_grad():
        for batch, size in batches:
            of_batch = batch_sums(batch)
            for name, value in of_batch.items() if size else ():
                is_tensor = isinstance(value, torch.Tensor)
                number = value.detach().double() if is_tensor else float(value)
                sums[name] = sums.get(name, 0.0) + number
            num_samples += size
            context.progress(step)

    matrix = sums.pop(CONFUSION_MATRIX, None)
    totals = {name: float(value) for name, value in sums.items()}
    everybody = context.gather((num_samples, totals, matrix))
    total = sum(size for size, *_ in everybody)
    names = {name for _, values, _ in everybody for name in values}

    metrics: dict[str, Any] = {
        name: math.fsum(values.get(name, 0.0) for _, values, _ in everybody) / total
        for name in sorted(names)
    }
    if matrices := [figures for *_, figures in everybody if figures is not None]:
        metrics[CONFUSION_MATRIX] = torch.stack(matrices).sum(dim=0)

    return metrics


def class_figures(matrix: torch.Tensor, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a confusion matrix says of each class, as plain JSON values.

    Classes are named by their numbers where ``names`` are not as many as they.

    References
    ----------
    K. H. Brodersen et al. (2010), The Balanced Accuracy and Its Posterior Distribution.
    """
    right = matrix.diagonal().tolist()
    of_class, taken_for = matrix.sum(dim=1).tolist(), matrix.sum(dim=0).tolist()
    recalls, precisions = (
        [
            part / whole if whole else None
            for part, whole in zip(right, counts, strict=True)
        ]
        for counts in (of_class, taken_for)
    )

    known = [recall for recall in recalls if recall is not None]

    figures: dict[str, Any] = {
        "balanced_accuracy": sum(known) / len(known) if known else None,
        "classes": [
            {
                "class": name,
                "samples": int(samples),
                "recall": recall,
                "precision": share,
            }
            for name, samples, recall, share in zip(
                names if len(names) == len(matrix) else range(len(matrix)),
                *(of_class, recalls, precisions),
                strict=True,
            )
        ],
    }
    if len(matrix) <= MAX_CLASSES_SHOWN:
        figures[CONFUSION_MATRIX] = matrix.long().tolist()

    return figures


def share_buffers(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the first one's buffers, such as batch-norm statistics."""
    first = 0 if group is None else dist.get_global_rank(group, 0)
    exchange_whole(
        model.buffers(), lambda flat: dist.broadcast(flat, src=first, group=group)
    )


def exchange_whole(
    tensors: Iterable[torch.Tensor], exchange: Callable[[torch.Tensor], object]
) -> None:
    """Call a collective once for all tensors of a type; they get what it leaves."""
    known = [tensor.detach() for tensor in tensors]
    for dtype in dict.fromkeys(tensor.dtype for tensor in known):
        alike = [tensor for tensor in known if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        exchange(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

"""Data loading: batches on the device, in the sample order of the trial."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalelab.training.order import SampleOrder, Share

Batch = Any
"""What a workload's ``loss`` takes: a tensor, or a tuple, list or mapping of such."""

Augment = Callable[[tuple[torch.Tensor, ...], torch.Tensor], tuple[torch.Tensor, ...]]

NUM_FINGERPRINT_SAMPLES = 1000


def training_batches(
    dataset: Dataset[Any],
    order: SampleOrder,
    share: Share,
    *,
    first_step: int,
    device: torch.device,
    augment: Augment | None = None,
    num_random: int = 0,
    loader_workers: int = 0,
) -> Iterator[Batch]:
    """Yield a rank's micro-batches without end, accumulation steps innermost.

    Parameters
    ----------
    dataset
        A ``TensorDataset`` is moved to the device whole and indexed there; any other
        map-style data set is read through a ``DataLoader``.
    order, share
        Which samples, and which of them are this rank's.
    first_step
        Step to start with; 0, or that of a checkpoint.
    device
        Where the batches are wanted.
    augment, num_random
        Applied to batches of a ``TensorDataset``, with ``num_random`` numbers in [0, 1)
        per sample.
    loader_workers
        Worker processes of the ``DataLoader``.
    """
    if isinstance(dataset, TensorDataset):
        yield from _indexed_batches(
            tuple(tensor.to(device) for tensor in dataset.tensors),
            order,
            share,
            first_step,
            augment if num_random else None,
            num_random,
        )
        return
    loader = DataLoader(
        dataset,
        batch_sampler=_MicroBatches(order, share, first_step),
        num_workers=loader_workers,
        # Forked, so that they die with their rank and need not import torch again.
        multiprocessing_context="fork" if loader_workers else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(torch.initial_seed()),
    )
    for batch in loader:
        yield to_device(batch, device)


def _indexed_batches(
    tensors: tuple[torch.Tensor, ...],
    order: SampleOrder,
    share: Share,
    first_step: int,
    augment: Augment | None,
    num_random: int,
) -> Iterator[Batch]:
    device = tensors[0].device
    for step in itertools.count(first_step):
        indices = torch.from_numpy(order.batch(step))
        uniform = torch.from_numpy(order.uniform(step, num_random))
        for micro_step in range(share.gradient_accumulation_steps):
            rows = share.rows(micro_step)
            chosen = to_device(indices[rows], device)
            batch = tuple(tensor[chosen] for tensor in tensors)
            if augment is not None:
                batch = augment(batch, to_device(uniform[rows], device))
            yield batch


class _MicroBatches:
    """The batch sampler of a rank: index lists without end."""

    def __init__(self, order: SampleOrder, share: Share, first_step: int) -> None:
        self._order = order
        self._share = share
        self._first_step = first_step

    def __iter__(self) -> Iterator[list[int]]:
        for step in itertools.count(self._first_step):
            indices = self._order.batch(step)
            for micro_step in range(self._share.gradient_accumulation_steps):
                yield indices[self._share.rows(micro_step)].tolist()


def held_out_batches(
    dataset: Dataset[Any],
    *,
    rank: int,
    world_size: int,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[Batch, int]]:
    """Yield a rank's part of the held-out data, each sample on exactly one rank.

    Yields
    ------
    batch, num_samples
        The last batch may be smaller; a rank may get no batch at all.
    """
    indices = np.array_split(np.arange(num_samples_of(dataset)), world_size)[rank]
    for first in range(0, len(indices), batch_size):
        chosen = indices[first : first + batch_size]
        if isinstance(dataset, TensorDataset):
            batch: Batch = dataset[torch.from_numpy(chosen)]
        else:
            samples = [dataset[int(index)] for index in chosen]
            batch = torch.utils.data.default_collate(samples)
        yield to_device(batch, device), len(chosen)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move every tensor of a batch to the device, without waiting for the copy."""
    if isinstance(batch, torch.Tensor):
        if batch.device == device:
            return batch
        # From pageable memory the copy would wait for all work queued on the device.
        source = batch.pin_memory() if device.type == "cuda" else batch
        return source.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(to_device(value, device) for value in batch)
    return batch


def num_samples_of(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a map-style data set."""
    return len(dataset)  # type: ignore[arg-type]


def fingerprint(dataset: Dataset[Any]) -> str:
    """Return a short hash of the training data.

    Of in-memory data, up to 1,000 evenly spaced samples, the shapes and the types are
    hashed; of other data only the class and the number of samples.
    """
    digest = hashlib.sha256(type(dataset).__qualname__.encode())
    digest.update(str(num_samples_of(dataset)).encode())
    for tensor in getattr(dataset, "tensors", ()):
        stride = max(1, len(tensor) // NUM_FINGERPRINT_SAMPLES)
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor[::stride].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]

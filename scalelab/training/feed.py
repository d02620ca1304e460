"""Data loading: batches on the device, in the sample order of the trial."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalelab.training.feeding.stream import SampleStream, StreamBatches
from scalelab.training.order import (
    SampleOrder,
    ShardedOrder,
    Share,
    StreamOrder,
    check_parts,
)

Batch = Any
"""What a workload's ``loss`` takes: a tensor, or a tuple, list or mapping of such."""

Augment = Callable[[tuple[torch.Tensor, ...], torch.Tensor], tuple[torch.Tensor, ...]]

NUM_FINGERPRINT_SAMPLES = 1000


def order_of(
    dataset: Dataset[Any], share: Share, *, seed: int, is_sharded: bool
) -> SampleOrder:
    """Return the order in which samples are trained on."""
    num_parts = share.data_parallel_size if is_sharded else 1
    if isinstance(dataset, SampleStream):
        check_parts(len(dataset.shards), "shards", num_parts)
        parts = [dataset.shards[part::num_parts] for part in range(num_parts)]
        return StreamOrder(
            parts=parts, buffer_size=dataset.shuffle_buffer, share=share, seed=seed
        )

    num_samples = num_samples_of(dataset)
    if is_sharded:
        check_parts(num_samples, "training samples", num_parts)
        return ShardedOrder(num_samples=num_samples, share=share, seed=seed)

    return SampleOrder(
        num_samples=num_samples, global_batch_size=share.global_batch_size, seed=seed
    )


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
    prefetch: int = 0,
    pins_memory: bool = False,
) -> Iterator[Batch]:
    """Yield a rank's micro-batches without end, accumulation steps innermost."""
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

    what: dict[str, Any] = {
        "dataset": dataset,
        "batch_sampler": _indices(order, share, first_step),
    }
    if isinstance(dataset, SampleStream) and isinstance(order, StreamOrder):
        batches = StreamBatches(dataset, order, share, first_step)
        what = {"dataset": batches, "batch_size": None}

    ahead = 0 if loader_workers else prefetch
    loader = DataLoader(
        **what,
        num_workers=loader_workers,
        prefetch_factor=(prefetch or None) if loader_workers else None,
        # Forked, so that they die with their rank and need not import torch again.
        multiprocessing_context="fork" if loader_workers else None,
        # A thread of ours has no current device; to_device() locks the pages then.
        pin_memory=pins_memory and not ahead,
        generator=torch.Generator().manual_seed(torch.initial_seed()),
    )
    for batch in read_ahead(iter(loader), ahead) if ahead else loader:
        yield to_device(batch, device, pins_memory=pins_memory)


def read_ahead(items: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """Yield items without end; a thread takes some before they are wanted."""
    free = threading.Semaphore(depth)
    ready: SimpleQueue[tuple[Batch, BaseException | None]] = SimpleQueue()

    has_ended = threading.Event()

    def read() -> None:
        try:
            while free.acquire() and not has_ended.is_set():
                ready.put((next(items), None))
        except BaseException as error:
            ready.put((None, error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            free.release()
            yield item
    finally:
        has_ended.set()
        free.release()


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


def _indices(order: SampleOrder, share: Share, first_step: int) -> Iterator[list[int]]:
    for step in itertools.count(first_step):
        indices = order.batch(step)
        for micro_step in range(share.gradient_accumulation_steps):
            yield indices[share.rows(micro_step)].tolist()


def held_out_batches(
    dataset: Dataset[Any],
    *,
    rank: int,
    world_size: int,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[Batch, int]]:
    """Yield a rank's part of the held-out data, each sample on exactly one rank."""
    indices = np.array_split(np.arange(num_samples_of(dataset)), world_size)[rank]
    for first in range(0, len(indices), batch_size):
        chosen = indices[first : first + batch_size]
        if isinstance(dataset, TensorDataset):
            batch: Batch = dataset[torch.from_numpy(chosen)]
        else:
            samples = [dataset[int(index)] for index in chosen]
            batch = torch.utils.data.default_collate(samples)
        yield to_device(batch, device), len(chosen)


def to_device(batch: Batch, device: torch.device, *, pins_memory: bool = True) -> Batch:
    """Move every tensor of a batch to the device, without waiting for the copy."""
    if isinstance(batch, torch.Tensor):
        if batch.device == device:
            return batch
        # From pageable memory the copy would wait for all work queued on the device.
        pins = pins_memory and device.type == "cuda"
        source = batch.pin_memory() if pins else batch
        return source.to(device, non_blocking=True)

    if isinstance(batch, dict):
        return {
            name: to_device(value, device, pins_memory=pins_memory)
            for name, value in batch.items()
        }

    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(
            to_device(value, device, pins_memory=pins_memory) for value in batch
        )

    return batch


def num_samples_of(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a map-style data set."""
    return len(dataset)  # type: ignore[arg-type]


def fingerprint(dataset: Dataset[Any]) -> str:
    """Return a short hash of the training data.

    Of in-memory data, up to 1,000 evenly spaced samples, the shapes and the types are
    hashed; of other data their ``content_hash``, or without one only the class and the
    number of samples.
    """
    kind = getattr(dataset, "content_hash", type(dataset).__qualname__)
    digest = hashlib.sha256(kind.encode())
    digest.update(str(num_samples_of(dataset)).encode())
    for tensor in getattr(dataset, "tensors", ()):
        stride = max(1, len(tensor) // NUM_FINGERPRINT_SAMPLES)
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor[::stride].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]

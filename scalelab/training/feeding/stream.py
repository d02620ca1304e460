"""Streams: samples in shards that are read from front to back."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from scalelab.training.feeding.reader import PictureReader
from scalelab.training.order import Indices, Share, StreamOrder


class SampleStream(Dataset[Any]):
    """A map-style data set whose training reads its shards from front to back.

    Attributes
    ----------
    shards
        Of each shard, its samples in their order.
    shuffle_buffer
        Samples among which the next one is drawn.
    """

    shards: Sequence[Indices]
    shuffle_buffer: int

    def reader(self) -> PictureReader:
        """Return a new reader."""
        raise NotImplementedError(f"{type(self).__name__} has no reader().")

    def decoded(self, index: int, stored: Any) -> Any:
        """Return a sample, of what is stored of it."""
        raise NotImplementedError(f"{type(self).__name__} has no decoded().")


class StreamBatches(IterableDataset[Any]):
    """The micro-batches of a rank, or of one of its loader processes, without end.

    Each process reads the whole stream of its rank. Of ``n`` processes each decodes
    every ``n``-th micro-batch.
    """

    def __init__(
        self, samples: SampleStream, order: StreamOrder, share: Share, first_step: int
    ) -> None:
        self._samples = samples
        self._order = order
        self._part, self._share = order.part_of(share)
        self._first_step = first_step

    def __iter__(self) -> Iterator[Any]:
        process = get_worker_info()
        own, count = (process.id, process.num_workers) if process else (0, 1)
        per_step = self._share.gradient_accumulation_steps
        numbers = itertools.count(0)
        stored = self._stored()
        while True:
            drawn = list(itertools.islice(stored, self._order.samples_per_step))
            for micro_step in range(per_step):
                if next(numbers) % count == own:
                    rows = drawn[self._share.rows(micro_step)]
                    yield default_collate(
                        [self._samples.decoded(*sample) for sample in rows]
                    )

    def _stored(self) -> Iterator[tuple[int, Any]]:
        epoch, step = divmod(self._first_step, self._order.steps_per_epoch)
        skipped = step * self._order.samples_per_step
        end = self._order.steps_per_epoch * self._order.samples_per_step
        with closing(self._samples.reader()) as reader:
            for number in itertools.count(epoch):
                whole = self._epoch(reader, number, skipped)
                yield from itertools.islice(whole, end - skipped)
                skipped = 0

    def _epoch(
        self, reader: PictureReader, epoch: int, skipped: int
    ) -> Iterator[tuple[int, Any]]:
        passes = zip(
            self._order.reading(self._part, epoch),
            self._order.passes(self._part, epoch),
            strict=True,
        )
        for reading, given in passes:
            if skipped < len(given):
                yield from self._pass(reader, reading.tolist(), given.tolist(), skipped)
            skipped = max(0, skipped - len(given))

    def _pass(
        self, reader: PictureReader, reading: list[int], given: list[int], skipped: int
    ) -> Iterator[tuple[int, Any]]:
        held: dict[int, Any] = {}
        done = self._order.num_read(skipped, len(reading))
        if done:
            reader.skip_to(reading[done - 1])
        for number, index in enumerate(given[skipped:], start=skipped + 1):
            wanted = self._order.num_read(number, len(reading))
            held |= {each: reader.onward(each) for each in reading[done:wanted]}
            done = wanted
            # What the buffer held where a resumed trial goes on is read by itself.
            yield index, held.pop(index) if index in held else reader.at(index)

"""Streams: samples in shards that are read from front to back, and their reader.

Pictures are named by their index.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO

from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from scalelab.errors import SpecError
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.pictures import Picture
from scalelab.training.feeding.tar import padded
from scalelab.training.order import Indices, Share, StreamOrder


class PictureReader:
    """Reads pictures of one process, from a declared store if there is one."""

    def __init__(
        self, pictures: Sequence[Picture], store: DeclaredStore | None = None
    ) -> None:
        self._pictures = pictures
        self._store = store
        self._file: BinaryIO | None = None
        self._path = ""
        self._position = 0

    def at(self, index: int) -> bytes:
        """Open the file that holds a picture and read it."""
        picture = self._pictures[index]
        with _opened(picture.path) as file:
            file.seek(picture.offset)
            content = file.read(picture.size)
        self._wait(1, len(content))
        return _whole(content, picture)

    def skip_to(self, index: int) -> None:
        """Go on behind a picture of an archive."""
        picture = self._pictures[index]
        self._open(picture)
        assert self._file is not None
        self._position = self._file.seek(picture.offset + padded(picture.size))

    def onward(self, index: int) -> bytes:
        """Read an archive on, up to the end of a picture, and return the picture.

        What lies before it is read, too, as from a store that streams. An archive is
        opened again for a picture that has been passed.
        """
        picture = self._pictures[index]
        if picture.path != self._path or picture.offset < self._position:
            self._open(picture)

        assert self._file is not None
        needed = picture.offset + padded(picture.size) - self._position
        content = self._file.read(needed)
        self._wait(0, needed)
        first = picture.offset - self._position
        self._position += needed
        return _whole(content[first : first + picture.size], picture)

    def close(self) -> None:
        """Close the archive."""
        if self._file is not None:
            self._file.close()

    def _open(self, picture: Picture) -> None:
        self.close()
        self._file = _opened(picture.path)
        self._path, self._position = picture.path, 0
        self._wait(1, 0)

    def _wait(self, num_opens: int, num_bytes: int) -> None:
        if self._store is not None:
            self._store.wait(num_opens, num_bytes)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise SpecError(
            f"{path} was there when the trial began and cannot be opened now: "
            f"{error.strerror}. Leave the data alone while a sweep runs.",
            code="data_changed",
        ) from error


def _whole(content: bytes, picture: Picture) -> bytes:
    if len(content) < picture.size:
        raise SpecError(
            f"{picture.path} has become shorter: of {picture.name!r}, {picture.size} "
            f"bytes from byte {picture.offset} on, {len(content)} are left. Leave the "
            "data alone while a sweep runs.",
            code="data_changed",
        )
    return content


class SampleStream(Dataset[Any]):
    """A map-style data set whose training reads its shards from front to back."""

    shards: Sequence[Indices]  # of each its samples, in their order
    shuffle_buffer: int  # samples among which the next one is drawn

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
        worker_id, count = (process.id, process.num_workers) if process else (0, 1)
        per_step = self._share.gradient_accumulation_steps
        numbers = itertools.count(0)

        stored = self._stored()
        while True:
            drawn = list(itertools.islice(stored, self._order.samples_per_step))
            for micro_step in range(per_step):
                if next(numbers) % count == worker_id:
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
            held |= {index: reader.onward(index) for index in reading[done:wanted]}
            done = wanted
            # What the buffer held where a resumed trial goes on is read by itself.
            yield index, held.pop(index) if index in held else reader.at(index)

"""What workers and servers say to each other: whole numbers and vectors, over gloo.

A request is four numbers: its kind and what that kind takes. Parameters follow as one
vector. Every request that brings one is answered before the next, so that servers hold
no queue of vectors.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

# A server hears nothing during evaluations. What ends a rank that hangs, and all ranks
# once one has died, is their supervisor.
PATIENCE = timedelta(days=1)
NUM_ARGUMENTS = 3


class Tag(IntEnum):
    """What tells messages of the same sender apart."""

    REQUEST = 0
    VECTOR = 1
    NUMBERS = 2
    GRANT = 3


class Kind(IntEnum):
    """The kinds of requests, with what they take.

    ``LOAD`` takes a version, the claimed steps and a vector's length; ``BEGIN`` the
    steps that may be claimed in a series; ``CLAIM`` and ``ENDED`` the steps that the
    worker has ended since it last told of any; ``HALT`` the origin and the length of
    the units with which the series may end; ``EXCHANGE`` the version last fetched.
    ``LOG``, ``READ`` and ``END`` take nothing. ``ENDED``, ``HALT`` and ``END`` are not
    answered.
    """

    LOAD = 0
    BEGIN = 1
    CLAIM = 2
    ENDED = 3
    HALT = 4
    LOG = 5
    EXCHANGE = 6
    READ = 7
    END = 8


class Wire:
    """A gloo group of all workers, and then all servers, beside that of the workers."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        store = PrefixStore("servers", store)
        # torch's types lack the methods of a group.
        self._group: Any = ProcessGroupGloo(store, rank, size, PATIENCE)

    def request(self, server: int, kind: Kind, *arguments: int) -> None:
        """Send a request to the server of this rank."""
        self.post(server, kind, *arguments)()

    def post(self, server: int, kind: Kind, *arguments: int) -> Callable[[], None]:
        """Send a request without waiting until it is received; return what waits."""
        padding = [0] * (NUM_ARGUMENTS - len(arguments))
        request = torch.tensor([kind, *arguments, *padding])
        work = self._group.send([request], server, Tag.REQUEST)

        def received() -> None:
            work.wait()
            request.numel()  # the message is not copied: it has to live until then

        return received

    def next_request(self) -> tuple[int, Kind, list[int]]:
        """Wait for a request; return the worker, its kind and what it takes."""
        numbers = torch.empty(1 + NUM_ARGUMENTS, dtype=torch.int64)
        work = self._group.recv_anysource([numbers], Tag.REQUEST)
        work.wait()
        kind, *arguments = numbers.tolist()
        return int(work._source_rank()), Kind(kind), arguments

    def send_numbers(
        self, to: int, numbers: Sequence[int], tag: Tag = Tag.NUMBERS
    ) -> None:
        """Send whole numbers, of which the receiver knows how many."""
        self._send(to, tag, torch.tensor(numbers, dtype=torch.int64))

    def send_vector(self, to: int, vector: torch.Tensor) -> None:
        """Send a vector, of which the receiver knows the length."""
        self._send(to, Tag.VECTOR, vector.contiguous())

    def expect_numbers(
        self, source: int, count: int, tag: Tag = Tag.NUMBERS
    ) -> Callable[[], list[int]]:
        """Be ready for whole numbers; return what waits for them and returns them.

        A message waits at its sender until its receiver is ready.
        """
        numbers = torch.empty(count, dtype=torch.int64)
        work = self._group.recv([numbers], source, tag)

        def received() -> list[int]:
            work.wait()
            return list[int](numbers.tolist())

        return received

    def expect_vector(self, source: int, length: int) -> Callable[[], torch.Tensor]:
        """Be ready for a vector of fp32; return what waits for it and returns it."""
        vector = torch.empty(length)
        work = self._group.recv([vector], source, Tag.VECTOR)

        def received() -> torch.Tensor:
            work.wait()
            return vector

        return received

    def _send(self, to: int, tag: Tag, tensor: torch.Tensor) -> None:
        self._group.send([tensor], to, tag).wait()

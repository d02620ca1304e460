"""What workers and servers say to each other: whole numbers and vectors, over gloo.

A request is four numbers: its kind and what that kind takes. Parameters follow as one
vector. Every request but the last is answered, so that a worker has one under way at
most, and servers hold no queue of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

# A server hears nothing during evaluations. What ends a rank that hangs, and all ranks
# once one has died, is their supervisor.
PATIENCE = timedelta(days=1)
NUM_ARGUMENTS = 3
_REQUEST, _VECTOR, _NUMBERS = range(3)


class Kind(IntEnum):
    """The kinds of requests, with what they take.

    ``LOAD`` takes a version, the claimed steps and a vector's length; ``CLAIM`` the
    steps that may be claimed; ``EXCHANGE`` the version last fetched and the steps that
    may be claimed. ``READ`` and ``END`` take nothing.
    """

    LOAD = 0
    CLAIM = 1
    EXCHANGE = 2
    READ = 3
    END = 4


class Wire:
    """A gloo group of all workers, and then all servers, beside that of the workers.

    Parameters
    ----------
    store
        Where they meet.
    rank, size
        Position of this process, and processes in all.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        store = PrefixStore("servers", store)
        # torch's types lack the methods of a group.
        self._group: Any = ProcessGroupGloo(store, rank, size, PATIENCE)

    def request(self, server: int, kind: Kind, *arguments: int) -> None:
        """Send a request to the server of this rank."""
        padding = [0] * (NUM_ARGUMENTS - len(arguments))
        self._send(server, _REQUEST, torch.tensor([kind, *arguments, *padding]))

    def next_request(self) -> tuple[int, Kind, list[int]]:
        """Wait for a request; return the worker, its kind and what it takes."""
        numbers = torch.empty(1 + NUM_ARGUMENTS, dtype=torch.int64)
        work = self._group.recv_anysource([numbers], _REQUEST)
        work.wait()
        kind, *arguments = numbers.tolist()
        worker: int = work._source_rank()
        return worker, Kind(kind), arguments

    def send_numbers(self, to: int, numbers: Sequence[int]) -> None:
        """Send whole numbers, of which the receiver knows how many."""
        self._send(to, _NUMBERS, torch.tensor(numbers, dtype=torch.int64))

    def numbers(self, source: int, count: int) -> list[int]:
        """Receive so many whole numbers."""
        numbers = torch.empty(count, dtype=torch.int64)
        self._group.recv([numbers], source, _NUMBERS).wait()
        values: list[int] = numbers.tolist()
        return values

    def send_vector(self, to: int, vector: torch.Tensor) -> None:
        """Send a vector, of which the receiver knows the length."""
        self._send(to, _VECTOR, vector.contiguous())

    def vector(self, source: int, length: int) -> torch.Tensor:
        """Receive a vector of fp32."""
        vector = torch.empty(length)
        self._group.recv([vector], source, _VECTOR).wait()
        return vector

    def _send(self, to: int, tag: int, tensor: torch.Tensor) -> None:
        self._group.send([tensor], to, tag).wait()

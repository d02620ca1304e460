"""What the placement is compared with: trials started one by one in some order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from scalelab.cluster.nodes import Node
from scalelab.records.attempt import NodeShare, Placement
from scalelab.scheduling.placement import FreeDevices
from scalelab.scheduling.trial_queue import Request


class Policy(Protocol):
    """What decides who starts where."""

    def add_node(self, node: Node) -> None: ...

    def remove_node(self, name: str) -> None: ...

    def enqueue(self, request: Request) -> None: ...

    def release(self, number: int) -> None: ...

    def place(self, now_s: float) -> list[tuple[Request, Placement]]: ...


class InOrder:
    """Starts the first trial in an order that fits.

    Parameters
    ----------
    order
        Gives the line that a request waits in; lines are tried from the smallest on.
    """

    def __init__(self, order: Callable[[Request], int]) -> None:
        self._order = order
        self._lines: dict[int, list[tuple[int, Request]]] = {}
        self._free = FreeDevices({})
        self._held: dict[int, dict[str, int]] = {}

    def add_node(self, node: Node) -> None:
        self._free.set(node.name, len(node.device_ids))

    def remove_node(self, name: str) -> None:
        self._free.remove(name)

    def enqueue(self, request: Request) -> None:
        line = self._lines.setdefault(self._order(request), [])
        heapq.heappush(line, (request.number, request))

    def release(self, number: int) -> None:
        for name, count in self._held.pop(number).items():
            if name in self._free.counts:
                self._free.add(name, count)

    def place(self, now_s: float) -> list[tuple[Request, Placement]]:
        placed = []
        for order in sorted(self._lines):
            line = self._lines[order]
            while line and (names := self._choose(line[0][1])):
                _, request = heapq.heappop(line)
                placed.append((request, self._start(request, names)))
        return placed

    def _choose(self, request: Request) -> list[str] | None:
        return self._free.choose(request.devices_per_node)

    def _start(self, request: Request, names: list[str]) -> Placement:
        counts = request.devices_per_node
        self._held[request.number] = dict(zip(names, counts, strict=True))
        for name, count in zip(names, counts, strict=True):
            self._free.add(name, -count)
        shares = (NodeShare(node=name, device_ids=("0",)) for name in names)
        return Placement(shares=tuple(shares))


def fifo() -> Policy:
    return InOrder(lambda request: 0)


def largest_first() -> Policy:
    return InOrder(lambda request: -request.trial.world_size)

"""The queue of trials that wait for devices, in the order in which they are considered.

The order is: canaries first, which are worth nothing late; then earlier repeats, so
that repeats are interleaved and a machine that drifts drifts for all configurations
alike; within a repeat the largest allocation first; among equals the order of the
source.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation

PATIENCE = 256
"""Later trials that may start before a waiting trial goes first, however small."""

_Key = tuple[int, tuple[int, ...], int]
"""Turn, devices per node and rough duration of trials that are alike."""


@dataclass(frozen=True, slots=True)
class Request:
    """A trial that waits for devices."""

    number: int
    trial: Trial
    duration_s: float

    @property
    def devices_per_node(self) -> tuple[int, ...]:
        """The number of devices of each share, the largest first."""
        return self.trial.allocation.devices_per_node


@dataclass(slots=True)
class _Group:
    """The requests of one turn, allocation and rough duration, first in, first out.

    ``overtaken`` counts the requests that came when the first one here was waiting
    already, and started before it.
    """

    turn: int
    world_size: int
    queue: deque[Request] = field(default_factory=deque)
    overtaken: int = 0

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        impatient = self.overtaken >= PATIENCE
        number = self.queue[0].number
        return (not impatient, self.turn, -self.world_size, number)


class TrialQueue:
    """The queue of the trials that wait for devices.

    Trials that came together are ordered by plan; a trial that has been overtaken
    :data:`PATIENCE` times by trials that came later goes first.
    """

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}
        self._num_rounds = 0
        self._round_of: dict[int, int] = {}  # of each request that waits

    def __len__(self) -> int:
        return len(self._round_of)

    def add(self, request: Request) -> None:
        """Add a trial to the queue."""
        key = _key_of(request)
        if key not in self._groups:
            self._groups[key] = _Group(key[0], request.trial.world_size)
        queue = self._groups[key].queue
        if queue and request.number < queue[0].number:
            queue.appendleft(request)  # it runs again after an attempt was lost
        else:
            queue.append(request)
        self._round_of[request.number] = self._num_rounds

    def heads(self) -> Iterator[Request]:
        """Iterate over the first trials of those that are alike."""
        return (group.queue[0] for group in self._groups.values())

    def requests(self) -> list[Request]:
        """Return the trials that wait, in the source's order."""
        requests = [item for group in self._groups.values() for item in group.queue]
        return sorted(requests, key=lambda request: request.number)

    def allocations(self) -> Counter[Allocation]:
        """Return how many trials wait for each allocation."""
        counts: Counter[Allocation] = Counter()
        for group in self._groups.values():
            counts[group.queue[0].trial.allocation] += len(group.queue)
        return counts

    def in_order(self) -> Iterator[Request]:
        """Iterate over the trials that may start next, in order, within one round.

        Of trials that are alike the first is given; the next one of them follows only
        if the first has been taken meanwhile.
        """
        self._num_rounds += 1
        line = [(group.rank, key) for key, group in self._groups.items()]
        heapq.heapify(line)

        while line:
            _, key = heapq.heappop(line)
            first = self._groups[key].queue[0]
            yield first
            group = self._groups.get(key)
            if group is not None and group.queue[0] is not first:
                heapq.heappush(line, (group.rank, key))

    def take(self, request: Request) -> None:
        """Remove a trial, the first of those that are alike, because it starts."""
        key = _key_of(request)
        group = self._groups[key]
        group.queue.popleft()
        group.overtaken = 0

        if not group.queue:
            del self._groups[key]

        came = self._round_of.pop(request.number)
        for other in self._groups.values():
            if self._round_of[other.queue[0].number] < came:
                other.overtaken += 1


def _key_of(request: Request) -> _Key:
    # Steps of a fifth keep the groups few and the short trials apart from the long.
    rough = math.ceil(4 * math.log2(max(request.duration_s, 1e-3)))
    turn = -1 if request.trial.is_canary else request.trial.repeat
    return turn, request.devices_per_node, rough

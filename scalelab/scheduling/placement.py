"""Decide which trial starts on which devices, and when. Pure: no Dask, no clock.

The order of the queue is: canaries first, which are worth nothing late; then earlier
repeats, so that repeats are interleaved and a machine that drifts drifts for all
configurations alike; within a repeat the largest allocation first; among equals the
order of the source. The first trial that does not fit gets a reservation, computed from
the estimated ends of what runs. A later trial may start before it only if it ends
before the reservation begins, or leaves its devices alone (EASY backfill; Lifka 1995,
"The ANL/IBM SP scheduling system").
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt import NodeShare, Placement
from scalelab.scheduling.free_devices import FreeDevices

WALLTIME_MARGIN_S = 15.0
"""Seconds by which a trial is to end before the job of its node does."""
PATIENCE = 256
"""Later trials that may start before a waiting trial goes first, however small."""


@dataclass(frozen=True, slots=True)
class Request:
    """A trial that waits for devices.

    Parameters
    ----------
    number
        Position in the source's order; names the request.
    trial
        What is to run.
    duration_s
        Estimated seconds it will hold its devices.
    """

    number: int
    trial: Trial
    duration_s: float

    @property
    def devices_per_node(self) -> tuple[int, ...]:
        """Devices of each share, largest first."""
        return self.trial.allocation.devices_per_node


@dataclass(slots=True)
class _Group:
    """Requests of one turn, allocation and rough duration: a first-in-first-out line.

    ``overtaken`` counts the requests that came later, when its head was waiting
    already, and started before it. Those that came together are ordered by plan.
    """

    turn: int
    world_size: int
    queue: deque[Request] = field(default_factory=deque)
    overtaken: int = 0

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Sort key among groups: the smallest goes first."""
        impatient = self.overtaken >= PATIENCE
        number = self.queue[0].number
        return (not impatient, self.turn, -self.world_size, number)


@dataclass(slots=True)
class _Slots:
    """The free device slots of a node since it joined, lowest first."""

    node: Node
    free: list[int]

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(heapq.heappop(self.free) for _ in range(count))

    def give(self, slots: Iterable[int]) -> None:
        for slot in slots:
            heapq.heappush(self.free, slot)


@dataclass(frozen=True, slots=True)
class _Limit:
    """When a node's job ends, and the longest that can be asked of any."""

    end_s: float
    longest_s: float

    def allows(self, duration_s: float, now_s: float) -> bool:
        needed_s = min(duration_s + WALLTIME_MARGIN_S, self.longest_s)
        return now_s + needed_s <= self.end_s


_Held = list[tuple[_Slots, tuple[int, ...]]]


class _Reservation:
    """When the first trial in line can start, and what may run past that moment."""

    def __init__(
        self,
        start_s: float,
        nodes: Iterable[str],
        free: FreeDevices,
        later: FreeDevices,
    ) -> None:
        self.start_s = start_s
        self._later = later
        self.spare = free.copy()
        for node in nodes:
            # Elsewhere there will be as many devices as now, or more.
            self.spare.set(node, min(free.counts[node], later.counts[node]))

    def account(
        self,
        nodes: Sequence[str],
        counts: Sequence[int],
        free: FreeDevices,
        end_s: float,
    ) -> None:
        """Subtract what a backfilled trial took."""
        for node, count in zip(nodes, counts, strict=True):
            if end_s > self.start_s:
                self._later.add(node, -count)
            self.spare.set(node, min(free.counts[node], self._later.counts[node]))


class Placer:
    """Allocates devices to trials: all that a trial needs at once, or none.

    Parameters
    ----------
    nodes
        Nodes that are up.
    expected_devices
        Devices of each node the cluster has when it is whole: what a trial may wait for
        although it is not up yet.
    """

    def __init__(
        self, nodes: Iterable[Node] = (), expected_devices: Sequence[int] = ()
    ) -> None:
        self._slots: dict[str, _Slots] = {}
        self._free = FreeDevices({})
        self._whole = FreeDevices({})
        self._known = FreeDevices({})
        self._expected = FreeDevices(
            {str(index): count for index, count in enumerate(expected_devices)}
        )
        self._groups: dict[tuple[int, tuple[int, ...], int], _Group] = {}
        self._running: dict[int, _Held] = {}
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        self._limits: dict[str, _Limit] = {}
        self._num_waiting = 0
        self._num_rounds = 0
        self._round_of: dict[int, int] = {}
        for node in nodes:
            self.add_node(node)

    @property
    def num_waiting(self) -> int:
        """Trials that wait for devices."""
        return self._num_waiting

    @property
    def free_devices(self) -> dict[str, int]:
        """Free devices by node name."""
        return dict(self._free.counts)

    def add_node(self, node: Node) -> None:
        """Add a node whose devices trials may use; it replaces one of the same name."""
        count = len(node.device_ids)
        self._slots[node.name] = _Slots(node, list(range(count)))
        for devices in (self._free, self._whole, self._known):
            devices.set(node.name, count)

    def remove_node(self, name: str) -> None:
        """Remove a node; the requests that ran on it hold its devices no more."""
        del self._slots[name]
        self._limits.pop(name, None)
        self._free.remove(name)
        self._whole.remove(name)

    def limit(self, name: str, end_s: float, longest_s: float) -> None:
        """Start on a node only what ends before its job does, by estimate.

        Parameters
        ----------
        name
            A node that is up.
        end_s
            When its job ends, on the clock of the estimates.
        longest_s
            The longest that can be asked of any job: a longer trial starts on a node
            with so much time left, and goes on elsewhere from its checkpoint.
        """
        self._limits[name] = _Limit(end_s, longest_s)

    def is_too_late(self, name: str, now_s: float) -> bool:
        """Tell whether a node ends too soon for every trial that waits."""
        limit = self._limits.get(name)
        heads = (group.queue[0] for group in self._groups.values())
        return limit is not None and not any(
            limit.allows(head.duration_s, now_s) for head in heads
        )

    def has_room(self, allocation: Allocation) -> bool:
        """Tell whether a trial fits the nodes that are up, once they are free."""
        return self._whole.fits(allocation.devices_per_node)

    def why_never(self, allocation: Allocation) -> str | None:
        """Return why no nodes of the site can fit a trial; None if some can."""
        needed = allocation.devices_per_node
        if self._known.fits(needed) or self._expected.fits(needed):
            return None
        counts = max(
            (devices.counts.values() for devices in (self._known, self._expected)),
            key=sum,
        )
        return (
            f"The trial needs {_in_words(needed)}; "
            f"the cluster has {_in_words(counts)}. "
            "Ask for fewer devices, or run on a larger cluster."
        )

    def enqueue(self, request: Request) -> None:
        """Add a trial to the queue."""
        # Steps of a fifth keep the lines few and the short trials apart from the long.
        rough = math.ceil(4 * math.log2(max(request.duration_s, 1e-3)))
        turn = -1 if request.trial.is_canary else request.trial.repeat
        key = (turn, request.devices_per_node, rough)
        if key not in self._groups:
            self._groups[key] = _Group(key[0], request.trial.world_size)
        queue = self._groups[key].queue
        if queue and request.number < queue[0].number:
            queue.appendleft(request)  # it runs again after an attempt was lost
        else:
            queue.append(request)
        self._num_waiting += 1
        self._round_of[request.number] = self._num_rounds

    def waiting(self) -> list[Request]:
        """Return the trials that wait, in the source's order."""
        requests = [item for group in self._groups.values() for item in group.queue]
        return sorted(requests, key=lambda request: request.number)

    def waiting_allocations(self) -> Counter[Allocation]:
        """Return how many trials wait for each allocation."""
        counts: Counter[Allocation] = Counter()
        for group in self._groups.values():
            counts[group.queue[0].trial.allocation] += len(group.queue)
        return counts

    def place(self, now_s: float) -> list[tuple[Request, Placement]]:
        """Start what may start now.

        Parameters
        ----------
        now_s
            The time on the clock of the estimates.

        Returns
        -------
        list of (Request, Placement)
            In the order of their start; each holds its devices until :meth:`release`.
        """
        self._num_rounds += 1
        placed = []
        first: Request | None = None
        reservation: _Reservation | None = None
        line = [(group.rank, key) for key, group in self._groups.items()]
        heapq.heapify(line)
        while line and self._free.fits((1,)):
            _, key = heapq.heappop(line)
            request = self._groups[key].queue[0]
            if not self._free.fits(request.devices_per_node):
                if first is None and self._whole.fits(request.devices_per_node):
                    first = request
                continue
            if first and not reservation:
                reservation = self._reserve(first, now_s)
            nodes = self._choose(request, reservation, now_s)
            if nodes is not None:
                placed.append((request, self._start(key, nodes, reservation, now_s)))
                if key in self._groups:
                    heapq.heappush(line, (self._groups[key].rank, key))
        return placed

    def release(self, number: int) -> None:
        """Free the devices of a request that was started."""
        for slots, taken in self._running.pop(number):
            slots.give(taken)
            if self._slots.get(slots.node.name) is slots:
                self._free.add(slots.node.name, len(taken))
        del self._ends[bisect_left(self._ends, (self._end_of.pop(number), number))]

    def _choose(
        self, request: Request, reservation: _Reservation | None, now_s: float
    ) -> list[str] | None:
        devices = self._free
        if reservation and now_s + request.duration_s > reservation.start_s:
            devices = reservation.spare
        nodes = devices.choose(request.devices_per_node)
        duration_s = request.duration_s
        if nodes is None or self._last(nodes, duration_s, now_s):
            return nodes
        lasting = devices.copy()
        for name in devices.counts:
            if not self._last([name], duration_s, now_s):
                lasting.remove(name)
        return lasting.choose(request.devices_per_node)

    def _last(self, names: Iterable[str], duration_s: float, now_s: float) -> bool:
        """Tell whether nodes stay up for as long as a trial is estimated to take."""
        limits = filter(None, map(self._limits.get, names))
        return all(limit.allows(duration_s, now_s) for limit in limits)

    def _start(
        self,
        key: tuple[int, tuple[int, ...], int],
        nodes: list[str],
        reservation: _Reservation | None,
        now_s: float,
    ) -> Placement:
        request = self._groups[key].queue[0]
        self._leave_line(key)
        held = []
        for name, count in zip(nodes, request.devices_per_node, strict=True):
            held.append((self._slots[name], self._slots[name].take(count)))
            self._free.add(name, -count)
        end_s = now_s + request.duration_s
        self._running[request.number] = held
        self._end_of[request.number] = end_s
        insort(self._ends, (end_s, request.number))
        if reservation:
            reservation.account(nodes, request.devices_per_node, self._free, end_s)
        return Placement(
            shares=tuple(
                NodeShare(
                    node=slots.node.name,
                    device_ids=tuple(slots.node.device_ids[slot] for slot in taken),
                )
                for slots, taken in held
            )
        )

    def _leave_line(self, key: tuple[int, tuple[int, ...], int]) -> None:
        group = self._groups[key]
        started = group.queue.popleft()
        self._num_waiting -= 1
        group.overtaken = 0
        if not group.queue:
            del self._groups[key]
        came = self._round_of.pop(started.number)
        for other in self._groups.values():
            if self._round_of[other.queue[0].number] < came:
                other.overtaken += 1

    def _reserve(self, request: Request, now_s: float) -> _Reservation:
        """Find the earliest moment at which the first in line fits, by estimate."""
        later = self._free.copy()
        start_s = now_s
        for end_s, number in self._ends:
            if later.fits(request.devices_per_node):
                break
            start_s = max(now_s, end_s)
            for slots, taken in self._running[number]:
                if self._slots.get(slots.node.name) is slots:
                    later.add(slots.node.name, len(taken))
        nodes = later.choose(request.devices_per_node)
        assert nodes is not None, (
            "a trial that fits the whole cluster fits it when empty"
        )
        for node, count in zip(nodes, request.devices_per_node, strict=True):
            later.add(node, -count)
        return _Reservation(start_s, nodes, self._free, later)


def _in_words(counts: Iterable[int]) -> str:
    """Return e.g. ``2 nodes x 4 + 1 node x 2 devices``."""
    ordered = sorted(counts, reverse=True)
    groups = [
        f"{number} node{'s' if number > 1 else ''} x {count}"
        for count, number in Counter(ordered).items()
    ]
    return " + ".join(groups) + " devices" if groups else "no nodes"

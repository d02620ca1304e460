"""Placement: on which devices a trial starts, and when. It uses no Dask and no clock.

Trials are considered in the order of the queue. The first trial that does not fit gets
a reservation, computed from the estimated ends of what runs. A later trial may start
before it only if it ends before the reservation begins, or leaves its devices alone
(EASY backfill; Lifka 1995, "The ANL/IBM SP scheduling system").
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt import NodeShare, Placement
from scalelab.scheduling.trial_queue import Request, TrialQueue

WALLTIME_MARGIN_S = 15.0
"""Seconds by which a trial is to end before the job of its node does."""

STOP_BEFORE = 0.1
"""Part of a job's time, at most, that is kept for a last checkpoint."""


class FreeDevices:
    """Free devices per node, with the nodes sorted by how many they have.

    A question about an allocation costs as many steps as it has nodes, whatever the
    size of the cluster.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts: dict[str, int] = {}  # by node
        self._nodes_with: list[dict[str, None]] = [{}]
        self._num_with_at_least: list[int] = [0]
        for node, count in counts.items():
            self.set(node, count)

    def copy(self) -> "FreeDevices":
        """Return an independent copy."""
        twin = FreeDevices({})
        twin.counts = dict(self.counts)
        twin._nodes_with = [dict(nodes) for nodes in self._nodes_with]
        twin._num_with_at_least = list(self._num_with_at_least)
        return twin

    def set(self, node: str, count: int) -> None:
        """Set how many devices of a node are free; the node may be new."""
        while len(self._nodes_with) <= count:
            self._nodes_with.append({})
            self._num_with_at_least.append(0)

        before = self.counts.get(node, 0)
        self._nodes_with[before].pop(node, None)
        self._nodes_with[count][node] = None
        self.counts[node] = count

        step = 1 if count > before else -1
        for level in range(min(before, count) + 1, max(before, count) + 1):
            self._num_with_at_least[level] += step

    def add(self, node: str, count: int) -> None:
        """Change a node's free devices by ``count``, which may be negative."""
        self.set(node, self.counts[node] + count)

    def remove(self, node: str) -> None:
        """Remove a node."""
        self.set(node, 0)
        del self._nodes_with[0][node], self.counts[node]

    def fits(self, devices_per_node: Sequence[int]) -> bool:
        """Tell whether an allocation, largest node first, could be placed now.

        The i-th largest share needs i nodes that have at least as many free devices;
        because a node that serves a large share serves any smaller one, that suffices.
        """
        largest, smallest = devices_per_node[0], devices_per_node[-1]
        available = self._num_with_at_least
        if largest >= len(available) or available[smallest] < len(devices_per_node):
            return False
        return largest == smallest or all(
            available[count] > index for index, count in enumerate(devices_per_node)
        )

    def choose(self, devices_per_node: Sequence[int]) -> list[str] | None:
        """Return each share's node, tightest fit first; None where it does not fit."""
        if not self.fits(devices_per_node):
            return None
        chosen: dict[str, None] = {}
        for count, shares in groupby(devices_per_node):
            tightest_first = (
                node
                for level in range(count, len(self._nodes_with))
                for node in self._nodes_with[level]
                if node not in chosen
            )
            chosen.update(
                (node, None) for node, _ in zip(tightest_first, shares, strict=False)
            )

        return list(chosen)


@dataclass(slots=True)
class _Slots:
    node: Node
    free: list[int]

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(heapq.heappop(self.free) for _ in range(count))

    def give(self, slots: Iterable[int]) -> None:
        for slot in slots:
            heapq.heappush(self.free, slot)


@dataclass(frozen=True, slots=True)
class _Limit:
    end_s: float
    longest_s: float

    def allows(self, duration_s: float, now_s: float) -> bool:
        needed_s = min(duration_s + WALLTIME_MARGIN_S, self.longest_s)
        return now_s + needed_s <= self.end_s


_Held = list[tuple[_Slots, tuple[int, ...]]]


class _Reservation:
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
        for node, count in zip(nodes, counts, strict=True):
            if end_s > self.start_s:
                self._later.add(node, -count)
            self.spare.set(node, min(free.counts[node], self._later.counts[node]))


class Placer:
    """The placer of trials: it gives a trial all the devices it needs at once, or none.

    A node may have more devices than cores. Trials run side by side there only as far
    as each rank has a core of its own; one with more ranks than cores runs alone. Where
    several nodes of a host share cores, one trial runs on the host at a time. Trials
    whose times are declared need no cores.

    ``expected_devices`` are those of each node that the cluster has when it is whole. A
    trial may wait for them although they are not up yet.
    """

    def __init__(
        self, nodes: Iterable[Node] = (), expected_devices: Sequence[int] = ()
    ) -> None:
        self._slots: dict[str, _Slots] = {}
        self._on_host: defaultdict[str, list[_Slots]] = defaultdict(list)
        self._held: Counter[str] = Counter()
        self._needs_cores = False
        self._free = FreeDevices({})
        self._whole = FreeDevices({})
        self._known = FreeDevices({})
        self._expected = FreeDevices(
            {str(index): count for index, count in enumerate(expected_devices)}
        )
        self.queue = TrialQueue()
        self._running: dict[int, _Held] = {}
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        self._limits: dict[str, _Limit] = {}

        for node in nodes:
            self.add_node(node)

    @property
    def free_devices(self) -> dict[str, int]:
        """Free devices by node name."""
        return dict(self._free.counts)

    def add_node(self, node: Node) -> None:
        """Add a node whose devices trials may use; it replaces one of the same name."""
        count = len(node.device_ids)
        if node.name in self._slots:
            self.remove_node(node.name)
        self._slots[node.name] = _Slots(node, list(range(count)))
        self._on_host[node.host].append(self._slots[node.name])
        for devices in (self._whole, self._known):
            devices.set(node.name, count)
        self._offer(self._free, node.host, self._held)

    def remove_node(self, name: str) -> None:
        """Remove a node; the requests that ran on it hold its devices no more."""
        slots = self._slots.pop(name)
        self._limits.pop(name, None)
        self._held.pop(name, None)
        self._free.remove(name)
        self._whole.remove(name)
        self._on_host[slots.node.host].remove(slots)
        self._offer(self._free, slots.node.host, self._held)

    def limit(self, name: str, end_s: float, longest_s: float) -> None:
        """Start on a node only what ends before its job does, by estimate."""
        self._limits[name] = _Limit(end_s, longest_s)

    def stop_s(self, name: str) -> float | None:
        """Return when to end what runs on a node, early enough for a checkpoint.

        It is on the monotonic clock; None: it is not known when the node's job ends.
        """
        limit = self._limits.get(name)
        if limit is None:
            return None
        return limit.end_s - min(WALLTIME_MARGIN_S, STOP_BEFORE * limit.longest_s)

    def is_too_late(self, name: str, now_s: float) -> bool:
        """Tell whether trials wait, and a node ends too soon for each of them."""
        limit, heads = self._limits.get(name), list(self.queue.heads())
        if limit is None or not heads:
            return False
        return not any(limit.allows(head.duration_s, now_s) for head in heads)

    def has_room(self, allocation: Allocation) -> bool:
        """Tell whether a trial fits the nodes that are up when all of them are free."""
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

    def place(
        self, now_s: float, claims: Callable[[Trial], bool] = lambda trial: True
    ) -> list[tuple[Request, Placement]]:
        """Start what may start now, of the trials that can claim what they cost."""
        placed = []
        first: Request | None = None

        reservation: _Reservation | None = None
        for request in self.queue.in_order():
            if not self._free.fits((1,)):
                break
            if not self._free.fits(request.devices_per_node):
                if first is None and self._whole.fits(request.devices_per_node):
                    first = request
                continue

            if first and not reservation:
                reservation = self._reserve(first, now_s)

            nodes = self._choose(request, reservation, now_s)
            if nodes is not None and claims(request.trial):
                placement = self._start(request, nodes, reservation, now_s)
                placed.append((request, placement))

        return placed

    def release(self, number: int) -> None:
        """Free the devices of a request that was started."""
        for slots, taken in self._running.pop(number):
            slots.give(taken)
            if self._slots.get(slots.node.name) is slots:
                self._held[slots.node.name] -= len(taken)
                self._offer(self._free, slots.node.host, self._held)
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
        limits = filter(None, map(self._limits.get, names))
        return all(limit.allows(duration_s, now_s) for limit in limits)

    def _start(
        self,
        request: Request,
        nodes: list[str],
        reservation: _Reservation | None,
        now_s: float,
    ) -> Placement:
        self.queue.take(request)
        self._needs_cores |= not request.trial.is_emulated

        held = []
        for name, count in zip(nodes, request.devices_per_node, strict=True):
            slots = self._slots[name]
            held.append((slots, slots.take(count)))
            self._held[name] += count
            self._offer(self._free, slots.node.host, self._held)

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

    def _offer(self, devices: FreeDevices, host: str, held: Counter[str]) -> None:
        """Set how many devices of a host a trial may take beside what is held."""
        nodes = self._on_host[host]
        is_busy = self._needs_cores and any(held[slots.node.name] for slots in nodes)

        shares_cores = is_busy and _share_devices(nodes)
        for slots in nodes:
            name, most = slots.node.name, len(slots.node.device_ids)
            if shares_cores:
                most = 0
            elif is_busy and held[name]:
                # Ranks that have a core of their own.
                most = min(slots.node.num_cores, len(set(slots.node.device_ids)))
            devices.set(name, max(0, most - held[name]))

    def _reserve(self, request: Request, now_s: float) -> _Reservation:
        later, held = self._free.copy(), self._held.copy()
        start_s = now_s
        for end_s, number in self._ends:
            if later.fits(request.devices_per_node):
                break
            start_s = max(now_s, end_s)
            for slots, taken in self._running[number]:
                if self._slots.get(slots.node.name) is slots:
                    held[slots.node.name] -= len(taken)
                    self._offer(later, slots.node.host, held)

        nodes = later.choose(request.devices_per_node)
        assert nodes is not None, (
            "a trial that fits the whole cluster fits it when empty"
        )
        for name, count in zip(nodes, request.devices_per_node, strict=True):
            held[name] += count
            self._offer(later, self._slots[name].node.host, held)

        return _Reservation(start_s, nodes, self._free, later)


def _share_devices(nodes: Sequence[_Slots]) -> bool:
    """Tell whether a core belongs to several nodes; a GPU never does.

    Two jobs on one host may each call their own GPU 0.
    """
    if any(slots.node.device_type != "cpu" for slots in nodes):
        return False
    ids = [device_id for slots in nodes for device_id in set(slots.node.device_ids)]
    return len(set(ids)) < len(ids)


def _in_words(counts: Iterable[int]) -> str:
    """Return e.g. ``2 nodes x 4 + 1 node x 2 devices``."""
    ordered = sorted(counts, reverse=True)
    groups = [
        f"{number} node{'s' if number > 1 else ''} x {count}"
        for count, number in Counter(ordered).items()
    ]
    return " + ".join(groups) + " devices" if groups else "no nodes"

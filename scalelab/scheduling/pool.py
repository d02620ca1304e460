"""The pool of nodes that are up, and the time limit on waiting for more."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from scalelab.cluster.nodes import Node
from scalelab.errors import ClusterError
from scalelab.experiment.trial import Trial
from scalelab.inputs.numerals import counted
from scalelab.records.attempt import Placement
from scalelab.records.control.events import (
    NodeLost,
    NodeSilent,
    NodeUp,
    OnEvent,
    Waiting,
)
from scalelab.scheduling.placement import Placer
from scalelab.scheduling.trial_queue import Request


class Pool:
    """The nodes that are up.

    Each node group has a placer of its own, so that none waits for what another group
    lacks; where nodes are alike there is one, of the group None.
    """

    def __init__(
        self,
        expected_devices: Mapping[str | None, Sequence[int]],
        on_event: OnEvent,
        timeout_s: float,
    ) -> None:
        self.placers: defaultdict[str | None, Placer] = defaultdict(
            Placer,
            {
                group: Placer(expected_devices=devices)
                for group, devices in expected_devices.items()
            },
        )

        self.max_nodes = {
            group: len(devices) for group, devices in expected_devices.items()
        }
        self._on_event = on_event
        self._timeout_s = timeout_s
        self._nodes: dict[str, Node] = {}
        self._address_of: dict[str, str] = {}
        self._wait_until_s: float | None = None

    @property
    def num_devices(self) -> int:
        """Devices that are up."""
        return sum(len(node.device_ids) for node in self._nodes.values())

    @property
    def nodes(self) -> list[Node]:
        """Nodes that are up."""
        return list(self._nodes.values())

    @property
    def num_held_devices(self) -> int:
        """Devices that are up and not free."""
        return sum(map(self.num_held_in, self.placers))

    @property
    def num_waiting(self) -> int:
        """Trials that wait for devices."""
        return sum(len(placer.queue) for placer in self.placers.values())

    def waiting(self) -> list[Request]:
        """Return the trials that wait, in the source's order."""
        requests = (
            request
            for placer in self.placers.values()
            for request in placer.queue.requests()
        )
        return sorted(requests, key=lambda request: request.number)

    def next_trials(self) -> list[Trial]:
        """Return the first waiting trial of those that are alike."""
        placers = self.placers.values()
        return [request.trial for placer in placers for request in placer.queue.heads()]

    def place(
        self, now_s: float, claims: Callable[[Trial], bool] = lambda trial: True
    ) -> list[tuple[Request, Placement]]:
        """Start what may start now; see :meth:`Placer.place`."""
        placers = self.placers.values()
        return [
            started for placer in placers for started in placer.place(now_s, claims)
        ]

    def num_held_in(self, group: str | None) -> int:
        """Return the devices of a node group that are up and not free."""
        free = self.placers[group].free_devices
        nodes = (node for node in self._nodes.values() if node.group == group)
        return sum(len(node.device_ids) for node in nodes) - sum(free.values())

    def is_busy(self, node: Node) -> bool:
        """Tell whether a trial holds devices of a node."""
        free = self.placers[node.group].free_devices
        return free[node.name] < len(node.device_ids)

    def join(self, node: Node) -> None:
        """Add a node that answered a round trip, unless it is known already."""
        if node.address not in self._nodes:
            self.leave(self._address_of.get(node.name, ""))
            self._nodes[node.address] = node
            self._address_of[node.name] = node.address
            self.placers[node.group].add_node(node)
            up = NodeUp(
                node=node.name, host=node.host, num_devices=len(node.device_ids)
            )
            self._on_event(up)

    def leave(self, address: str) -> None:
        """Remove a node that was lost, if it was known, and report it."""
        if node := self.give_back(address):
            self._on_event(NodeLost(node=node.name))

    def report_silence(
        self, address: str, silent_s: float, lost_after_s: float
    ) -> None:
        """Report a node that has not answered for a while."""
        node = self._nodes.get(address)
        self._on_event(
            NodeSilent(
                node=node.name if node else address,
                silent_s=silent_s,
                lost_after_s=lost_after_s,
            )
        )

    def give_back(self, address: str) -> Node | None:
        """Remove a node; return it if it was known."""
        if node := self._nodes.pop(address, None):
            del self._address_of[node.name]
            self.placers[node.group].remove_node(node.name)
        return node

    def addresses(self, placement: Placement) -> tuple[str, ...]:
        """Return the address of each node of a placement, rank 0's first."""
        return tuple(self._address_of[share.node] for share in placement.shares)

    def validity(self, trial: Trial, placement: Placement) -> tuple[str, ...]:
        """Return the validity reasons that are known before an attempt starts.

        A node may have fewer cores than devices: SLURM gives one core per task unless
        asked for more. What else runs on the nodes takes no cores from the trial, see
        :class:`~.placement.Placer`.
        """
        nodes = self._nodes_of(placement)
        parts = [share.device_ids for share in placement.shares]

        reasons = []
        if not trial.is_emulated:
            ranks_on = Counter(
                (node.host, device)
                for node, ids in zip(nodes, parts, strict=True)
                for device in ids
            )
            if max(ranks_on.values(), default=0) > 1 or any(
                len(ids) > node.num_cores
                for node, ids in zip(nodes, parts, strict=True)
            ):
                reasons.append("oversubscribed_cores")
            if len({node.host for node in nodes}) < len(nodes):
                reasons.append("loopback_nodes")

        if len({len(ids) for ids in parts}) > 1:
            reasons.append("uneven_ranks")

        return tuple(reasons)

    def time_left_s(self, placement: Placement) -> float | None:
        """Return the seconds until its nodes' walltime is nearly up; None: unknown."""
        stops_s = [
            self.placers[node.group].stop_s(node.name)
            for node in self._nodes_of(placement)
        ]
        known = [stop_s for stop_s in stops_s if stop_s is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def threads_per_rank(self, placement: Placement, device_type: str) -> int:
        """Return the threads a rank may use: one core, or its share beside a GPU."""
        if device_type == "cpu":
            return 1
        nodes = self._nodes_of(placement)
        return max(1, min(node.num_cores // len(node.device_ids) for node in nodes))

    def deadline_s(self, is_idle: Callable[[], bool]) -> float | None:
        """Return until when to wait for nodes, if nothing can run without them."""
        if not is_idle():
            self._wait_until_s = None
        elif self._wait_until_s is None:
            self._wait_until_s = time.monotonic() + self._timeout_s
            self._on_event(Waiting(reason=self._what_is_missing()))
        elif self._wait_until_s <= time.monotonic():
            raise ClusterError(
                f"{self._what_is_missing()} None came within {self._timeout_s:g} s. "
                "What has ended is recorded; run the same command again to go on."
            )
        return self._wait_until_s

    def _nodes_of(self, placement: Placement) -> list[Node]:
        return [self._nodes[address] for address in self.addresses(placement)]

    def _what_is_missing(self) -> str:
        first = self.waiting()[0].trial.allocation
        up = ", ".join(
            f"{node.name} with {counted(len(node.device_ids), 'device')}"
            for node in self._nodes.values()
        )
        count = self.num_waiting

        return (
            f"{counted(count, 'trial')} {'waits' if count == 1 else 'wait'} for nodes; "
            f"the first needs {counted(first.world_size, 'device')} on "
            f"{counted(first.num_nodes, 'node')}. "
            f"{len(self._nodes)} of {counted(sum(self.max_nodes.values()), 'node')} up"
            f"{f' ({up})' if up else ''}."
        )

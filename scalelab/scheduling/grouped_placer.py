"""Placement with node groups: a trial runs only on nodes of its own group."""

from collections.abc import Iterable, Mapping, Sequence

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial
from scalelab.records.attempt import Placement
from scalelab.scheduling.placement import WALLTIME_MARGIN_S, Placer
from scalelab.scheduling.trial_queue import Request

STOP_BEFORE = 0.1
"""Part of a job's time, at most, that is kept for a last checkpoint."""


class GroupedPlacer:
    """A placer for each node group, so that none waits for what another group lacks.

    Where nodes are alike there is one, of the group None.

    Attributes
    ----------
    groups
        The placer of each group.
    """

    def __init__(self, expected_devices: Mapping[str | None, Sequence[int]]) -> None:
        self.groups = {
            group: Placer(expected_devices=devices)
            for group, devices in expected_devices.items()
        }
        self._with_node: dict[str, Placer] = {}
        self._stop_s: dict[str, float] = {}
        self._running: dict[int, Placer] = {}

    @property
    def num_waiting(self) -> int:
        """Trials that wait for devices."""
        return sum(len(placer.queue) for placer in self.groups.values())

    @property
    def free_devices(self) -> dict[str, int]:
        """Free devices by node name."""
        return {
            name: count
            for placer in self.groups.values()
            for name, count in placer.free_devices.items()
        }

    def add_node(self, node: Node) -> None:
        """Add a node of its group; see :meth:`Placer.add_node`."""
        placer = self._of(node.group)
        placer.add_node(node)
        self._with_node[node.name] = placer

    def remove_node(self, name: str) -> None:
        """Remove a node; see :meth:`Placer.remove_node`."""
        self._with_node.pop(name).remove_node(name)
        self._stop_s.pop(name, None)

    def limit(self, name: str, end_s: float, longest_s: float) -> None:
        """Start on a node only what ends in time; see :meth:`Placer.limit`."""
        self._with_node[name].limit(name, end_s, longest_s)
        self._stop_s[name] = end_s - min(WALLTIME_MARGIN_S, STOP_BEFORE * longest_s)

    def stop_s(self, names: Iterable[str]) -> float | None:
        """Return when to end what runs on nodes, on the monotonic clock.

        It is early enough for a checkpoint before the first one's job ends; None: it is
        not known of any.
        """
        known = (self._stop_s[name] for name in names if name in self._stop_s)
        return min(known, default=None)

    def is_too_late(self, name: str, now_s: float) -> bool:
        """Tell whether a node ends too soon; see :meth:`Placer.is_too_late`."""
        return self._with_node[name].is_too_late(name, now_s)

    def why_never(self, trial: Trial) -> str | None:
        """Return why a trial fits no nodes; see :meth:`Placer.why_never`."""
        return self._of(trial.node_group).why_never(trial.allocation)

    def enqueue(self, request: Request) -> None:
        """Add a trial to the queue of its group."""
        self._of(request.trial.node_group).queue.add(request)

    def waiting(self) -> list[Request]:
        """Return the trials that wait, in the source's order."""
        requests = (
            each for placer in self.groups.values() for each in placer.queue.requests()
        )
        return sorted(requests, key=lambda request: request.number)

    def place(self, now_s: float) -> list[tuple[Request, Placement]]:
        """Start what may start now; see :meth:`Placer.place`."""
        placed = []
        for placer in self.groups.values():
            for request, placement in placer.place(now_s):
                self._running[request.number] = placer
                placed.append((request, placement))
        return placed

    def release(self, number: int) -> None:
        """Free the devices of a request that was started."""
        self._running.pop(number).release(number)

    def _of(self, group: str | None) -> Placer:
        return self.groups.setdefault(group, Placer())

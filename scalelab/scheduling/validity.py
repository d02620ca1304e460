"""Validity reasons known before an attempt starts, such as oversubscribed cores."""

from __future__ import annotations

from collections import Counter

from scalelab.cluster.nodes import Node
from scalelab.records.attempt import Placement

DECLARED_TIMES = "emulated"
"""The workload whose times are declared, so that shared hardware does not matter."""


class SharedHardware:
    """Which nodes share a host, and which devices have no core of their own.

    A batch system may give a job fewer cores than GPUs: SLURM gives one per task unless
    asked for more.
    """

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._slots: Counter[tuple[str, str]] = Counter()
        self._without_cores: set[str] = set()

    def add(self, node: Node) -> None:
        """Add a node."""
        self._hosts[node.name] = node.host
        self._slots.update((node.host, device) for device in node.device_ids)
        if node.num_cores < len(set(node.device_ids)):
            self._without_cores.add(node.name)

    def remove(self, node: Node) -> None:
        """Remove a node."""
        del self._hosts[node.name]
        self._without_cores.discard(node.name)
        self._slots.subtract((node.host, device) for device in node.device_ids)

    def validity(self, workload: str, placement: Placement) -> tuple[str, ...]:
        """Return the reasons known before an attempt of a workload starts."""
        reasons = []
        if workload != DECLARED_TIMES:
            hosts = [self._hosts[share.node] for share in placement.shares]
            if any(
                share.node in self._without_cores or self._slots[host, device] > 1
                for host, share in zip(hosts, placement.shares, strict=True)
                for device in share.device_ids
            ):
                reasons.append("oversubscribed_cores")
            if len(set(hosts)) < len(hosts):
                reasons.append("loopback_nodes")
        if len({len(share.device_ids) for share in placement.shares}) > 1:
            reasons.append("uneven_ranks")
        return tuple(reasons)

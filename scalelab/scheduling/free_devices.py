"""An index of free devices per node that tells quickly whether a trial fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby


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

    def copy(self) -> FreeDevices:
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

from dataclasses import dataclass
from typing import Self

from scalelab.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """How many devices on how many nodes, e.g. ``(4, 4)`` or, uneven, ``(4, 2)``."""

    devices_per_node: tuple[int, ...]  # of each node, largest first

    def __post_init__(self) -> None:
        if not self.devices_per_node or min(self.devices_per_node) < 1:
            raise SpecError(
                f"devices_per_node={list(self.devices_per_node)} is not an allocation: "
                "every node needs at least 1 device.",
                code="not_an_allocation",
            )
        ordered = tuple(sorted(self.devices_per_node, reverse=True))
        object.__setattr__(self, "devices_per_node", ordered)

    @classmethod
    def packed(cls, num_devices: int, devices_on_node: int) -> Self:
        """Pack devices on as few nodes as possible.

        >>> Allocation.packed(6, devices_on_node=4)
        Allocation(devices_per_node=(4, 2))
        """
        full, rest = divmod(num_devices, devices_on_node)
        nodes = (devices_on_node,) * full + ((rest,) if rest else ())
        return cls(devices_per_node=nodes)

    @classmethod
    def spread(cls, num_devices: int, num_nodes: int) -> Self:
        """Spread devices over nodes as evenly as possible.

        >>> Allocation.spread(8, num_nodes=3)
        Allocation(devices_per_node=(3, 3, 2))
        """
        share, rest = divmod(num_devices, num_nodes)
        devices = (share + 1,) * rest + (share,) * (num_nodes - rest)
        return cls(devices_per_node=devices)

    @property
    def world_size(self) -> int:
        """Devices in all; one rank runs on each."""
        return sum(self.devices_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes the devices are spread over."""
        return len(self.devices_per_node)

    @property
    def gpus_per_node(self) -> float:
        """Devices per node, a mean where the allocation is uneven."""
        return self.world_size / self.num_nodes

    def holds(self, num_devices: int, num_nodes: int) -> bool:
        """Tell whether so many devices, spread over so many nodes, are among these."""
        on_node = -(-num_devices // num_nodes)
        return num_nodes <= self.num_nodes and on_node <= self.devices_per_node[0]

    def __str__(self) -> str:
        per_node = "+".join(map(str, dict.fromkeys(self.devices_per_node)))
        return f"{self.num_nodes}x{per_node}"

"""The inventory of a cluster, and whether a site's jobs fit on its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalelab.errors import ClusterError, SpecError
from scalelab.inputs.problems import one_of
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.site.batch_site import BatchSite
from scalelab.site.node_settings import DeviceType


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Nodes that are alike, and what each of them has; None: not said."""

    num_nodes: int
    cores: int
    gpus: int = 0
    memory_bytes: int | None = None
    gpu_type: str | None = None

    def __str__(self) -> str:
        size = self.memory_bytes
        memory = "" if size is None else f", {size / 2**30:,.0f} GiB"
        model = f" {self.gpu_type}" if self.gpu_type else ""
        gpus = f", {self.gpus}{model} GPUs" if self.gpus else ""
        return f"{self.num_nodes} x ({self.cores} cores{memory}{gpus})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """A queue of a batch system, which SLURM calls a partition."""

    name: str
    groups: tuple[NodeGroup, ...]
    is_default: bool = False
    is_open: bool = True
    max_walltime_s: float | None = None  # None: without limit, or not said
    num_away: int = 0
    routes_to: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """All its nodes."""
        return sum(group.num_nodes for group in self.groups)

    @property
    def num_gpus(self) -> int:
        """GPUs of all its nodes."""
        return sum(group.num_nodes * group.gpus for group in self.groups)

    @property
    def kinds(self) -> tuple[NodeGroup, ...]:
        """The nodes to sweep on, those with most GPUs first.

        Of each GPU model the largest group, where requests can tell them apart; else
        the largest group alone.
        """
        by_size = sorted(
            self.groups,
            key=lambda group: (
                group.num_nodes * group.gpus,
                group.num_nodes * group.cores,
            ),
            reverse=True,
        )

        largest: dict[str | None, NodeGroup] = {}
        for group in by_size:
            if group.gpus:
                largest.setdefault(group.gpu_type, group)

        if len(largest) < 2 or None in largest:
            return (by_size[0],)

        return tuple(largest.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The queues and nodes of a cluster, and the accounts that the user may charge.

    The default account comes first; there are none where it is not said.
    """

    scheduler: str
    cluster_name: str
    queues: tuple[Queue, ...]
    accounts: tuple[str, ...] = ()
    gpu_settings: Mapping[str, str] = field(default_factory=dict)

    def queue(self, name: str | None = None) -> Queue:
        """Return a queue by name; by default the one to sweep in.

        That is the default queue if it has GPUs, else the open one with most of them.
        """
        if name is not None:
            for queue in self.queues:
                if queue.name == name and queue.groups:
                    return queue
            raise SpecError(
                f"{self.scheduler} has no {self.noun} {name!r} with nodes here. "
                f"{one_of([queue.name for queue in self.queues], name)}",
                code="unknown_queue",
            )

        usable = [queue for queue in self.queues if queue.groups and queue.is_open]
        if not usable:
            raise ClusterError(
                f"{self.scheduler} shows no {self.noun} that is open and has nodes. "
                "Write the profile by hand: docs/clusters.md."
            )

        return max(
            usable,
            key=lambda group: (
                group.is_default and group.num_gpus > 0,
                group.num_gpus,
                group.is_default,
            ),
        )

    @property
    def noun(self) -> str:
        """The batch system's word for a queue."""
        return BATCH_SYSTEMS[self.scheduler].queue_noun


def asked_queue(site: BatchSite, inventory: Inventory) -> Queue | None:
    """Return the queue that a site's jobs go to; None: no queue has that name."""
    wanted = site.queue_name
    queues = {queue.name: queue for queue in inventory.queues}
    default = (queue for queue in inventory.queues if queue.is_default and not wanted)
    return queues.get(wanted or "") or next(default, None)


def why_no_node_fits(site: BatchSite, queue: Queue) -> str:
    """Say that no node has what a site asks of one; empty where one has, or may."""
    gpus = site.devices_per_node if site.asks_for_gpus else 0
    cores = site.cores_per_node or 0
    if site.device_type is DeviceType.CPU:
        cores = cores or site.devices_per_node

    memory = site.memory_per_node
    fits = any(
        gpus <= group.gpus
        and cores <= group.cores
        and (memory or 0) <= (group.memory_bytes or float("inf"))
        for group in queue.groups
    )
    if fits or not queue.groups:
        return ""

    asked = [f"{cores} cores"] if cores else []
    asked += [f"{gpus} GPUs"] if gpus else []
    asked += [f"{memory / 2**30:,.1f} GiB"] if memory else []
    groups = "; ".join(map(str, queue.groups))

    return (
        f"{queue.name} has no node with {', '.join(asked)}, only {groups}. Correct "
        "gpus_per_node, cores_per_node or memory_per_node."
    )

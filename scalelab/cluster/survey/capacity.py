"""Whether the nodes of a queue are large enough for what a site asks of each."""

from __future__ import annotations

from collections.abc import Iterator

from scalelab.cluster.survey.inventory import Inventory, Queue
from scalelab.site.batch_site import BatchSite
from scalelab.site.profile import DeviceType


def asked_queue(site: BatchSite, inventory: Inventory) -> Queue | None:
    """Return the queue that a site's jobs go to; None: there is none of that name."""
    wanted = site.queue_name
    queues = {each.name: each for each in inventory.queues}
    default = (each for each in inventory.queues if each.is_default and not wanted)
    return queues.get(wanted or "") or next(default, None)


def why_no_node_fits(site: BatchSite, queue: Queue) -> str:
    """Say that no node has what a site asks of one; empty where one has, or may."""
    gpus = site.devices_per_node if site.asks_for_gpus else 0
    cores = site.cores_per_node or 0
    if site.device_type is DeviceType.CPU:
        cores = cores or site.devices_per_node
    memory = site.memory_per_node
    fits = any(
        gpus <= each.gpus
        and cores <= each.cores
        and (memory or 0) <= (each.memory_bytes or float("inf"))
        for each in queue.groups
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


def never_fitting(site: BatchSite, inventory: Inventory) -> Iterator[str]:
    """Say for each node group of a site whose jobs would wait for ever, and why."""
    for name, group in site.groups.items():
        queue = asked_queue(group, inventory)
        if queue is not None and (why := why_no_node_fits(group, queue)):
            yield f"node_group {name}: {why}" if name else why

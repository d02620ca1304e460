"""The choice of a provisioner, by what kind of cluster the nodes come from."""

from __future__ import annotations

from collections.abc import Callable

from scalelab.cluster.batch.nodes import BatchNodes
from scalelab.cluster.batch.queue import QueueEvent
from scalelab.cluster.nodes import Cluster
from scalelab.cluster.watch import NodeLeft
from scalelab.records.control.events import OnEvent
from scalelab.scheduling.gangs import PartEnded
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.null_provisioner import NullProvisioner
from scalelab.scheduling.provision.provisioner import Provision


def provision_of(
    cluster: Cluster,
    pool: Pool,
    leave: Callable[[str], None],
    on_event: OnEvent,
    deliver: Callable[[QueueEvent | NodeLeft | PartEnded], None],
) -> Provision | NullProvisioner:
    """Return the provisioner of a cluster; a null one where all nodes are there."""
    if not isinstance(cluster, BatchNodes):
        return NullProvisioner()
    cluster.attend(deliver)
    return Provision(cluster, pool, leave=leave, on_event=on_event, deliver=deliver)

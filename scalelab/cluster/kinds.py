"""Which kind of cluster a site asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.experiment.program import Program, needs_torch
from scalelab.launch.protocol import DEFAULT_ENTRY
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.site.profile import Scheduler, Site
from scalelab.training.workloads.registry import preload_modules

if TYPE_CHECKING:
    from scalelab.cluster.nodes import Cluster


def cluster_of(
    site: Site, *, run: Path, max_nodes: int, program: Program
) -> AbstractContextManager[Cluster]:
    """Return the cluster of a site; nodes start when it is entered.

    Parameters
    ----------
    site
        Where nodes come from.
    run
        Directory of the run.
    max_nodes
        Nodes of the largest trial: what a site that sets no limit may be asked for.
    program
        What the trials run.
    """
    preload = preload_modules(program)
    entry = DEFAULT_ENTRY if needs_torch(program) else None
    if site.scheduler is Scheduler.LOCAL:
        from scalelab.cluster.local import LocalNodes

        return LocalNodes(
            site.num_nodes or 1,
            site.gpus_per_node,
            site.device_type.value,
            preload=preload,
            entry=entry,
        )
    if site.scheduler is Scheduler.ALLOCATION:
        from scalelab.cluster.allocation import AllocationNodes

        directory = run / CLUSTER_DIRECTORY
        return AllocationNodes(site, directory=directory, preload=preload, entry=entry)
    from scalelab.cluster.batch.nodes import BatchNodes

    return BatchNodes(
        site,
        max_nodes,
        run_name=run.name,
        directory=run / CLUSTER_DIRECTORY,
        preload=preload,
        entry=entry,
    )

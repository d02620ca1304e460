"""The client of a batch system: what runs its programs for ScaleLab."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Protocol

from scalelab.cluster.batch.queue import BatchJob, JobView
from scalelab.cluster.survey.inventory import Inventory
from scalelab.errors import ClusterError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem
from scalelab.kinds.registry import imported


class BatchClient(Protocol):
    """Client of a batch system, whose class a row of ``BATCH_SYSTEMS`` names.

    What needs no job is static: it is asked without what submits jobs.
    """

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job that is to be submitted, or has this id already."""
        ...

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what is known of jobs, both by name."""
        ...

    @staticmethod
    def survey() -> Inventory:
        """Return the queues, nodes and accounts that there are."""
        ...

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Tell whether jobs of a queue may submit others; None: not known."""
        ...


def batch_client(system: BatchSystem) -> BatchClient:
    """Return the client of a batch system; call it in the main thread."""
    return client_class(system)()


def client_class(system: BatchSystem) -> type[BatchClient]:
    """Return the class of the client of a batch system."""
    found: type[BatchClient] = imported(system.client)
    return found


def survey(system: BatchSystem | None = None) -> Inventory:
    """Ask a batch system for the queues, nodes and accounts that there are.

    By default, the one whose programs can be run here.
    """
    if system is not None:
        return client_class(system).survey()
    for each in BATCH_SYSTEMS:
        if shutil.which(each.survey_program):
            return client_class(each).survey()
    *others, last = (each.survey_program for each in BATCH_SYSTEMS)
    raise ClusterError(
        f"Neither {', '.join(others)} nor {last} can be run here. Log in to the "
        "cluster, or write the profile by hand: docs/clusters.md."
    )

"""Demand by node group: how many nodes of it the waiting trials can use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scalelab.scheduling.provision.backoff import SubmissionBackoff
from scalelab.scheduling.provision.jobs import ProvisionedJob

if TYPE_CHECKING:
    from scalelab.scheduling.pool import Pool
    from scalelab.site.batch_site import BatchSite


_WORN = 0.1
"""Part of its walltime that a job may have spent while it counts as new."""


@dataclass(slots=True)
class GroupDemand:
    """The nodes of one group that trials need, and the back-off in asking for them.

    Parameters
    ----------
    site
        The site, as it is for this group; see
        :attr:`scalelab.site.batch_site.BatchSite.groups`.
    """

    site: BatchSite
    max_nodes: int
    backoff: SubmissionBackoff = field(default_factory=SubmissionBackoff)
    num_exchanged: int = 0

    @property
    def fresh(self) -> float:
        """Part of its walltime that a job has left at least while it counts as new.

        Less after every exchange that led to no trial: where nodes take long to join,
        or wait for each other, there are none that are newer.
        """
        return max(0.0, 1 - _WORN * 2.0**self.num_exchanged)

    def record_success(self) -> None:
        """Start counting anew, since a trial was measured."""
        self.backoff.reset()
        self.num_exchanged = 0

    def num_wanted(self, pool: Pool, *, is_stopped: bool) -> int:
        """Return the nodes that the trials of the group can use."""
        group = self.site.group
        waiting = {} if is_stopped else pool.placer.groups[group].queue.allocations()
        num_devices = sum(each.world_size * count for each, count in waiting.items())
        num_devices += pool.num_held_in(group)
        at_least = max((each.num_nodes for each in waiting), default=0)
        if self.site.provision == "one_job":
            return at_least or min(1, num_devices)
        useful = math.ceil(num_devices / self.site.devices_per_node)
        return min(self.max_nodes, max(at_least, useful))

    def spare(
        self,
        jobs: Sequence[ProvisionedJob],
        idle: Sequence[ProvisionedJob],
        wanted: int,
    ) -> list[ProvisionedJob]:
        """Return those of the idle jobs that are not needed, those that wait first."""
        if self.site.provision == "one_job":
            return [job for job in idle if job.num_nodes < wanted or not wanted]
        num_spare = max(0, len(jobs) - wanted)
        return sorted(idle, key=lambda job: not job.is_pending)[:num_spare]

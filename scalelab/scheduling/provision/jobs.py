"""Batch jobs that hold nodes of the sweep, as the driver knows them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scalelab.cluster.batch.queue import JobState, JobView
from scalelab.cluster.nodes import Node
from scalelab.records.control.job_list import JobLine

if TYPE_CHECKING:
    from scalelab.site.batch_site import BatchSite

LEAVING_S = 15.0
"""How long a job may take to say how it ended."""
NEARLY_S = 5.0
"""Seconds that a job may end before its time, as far as that is known."""


class Batch(Protocol):
    """The cluster that submits the jobs; see ``scalelab.cluster.batch.nodes``."""

    site: BatchSite

    def request(self, num_nodes: int, group: str | None = None) -> str:
        """Submit a job for nodes of a group and return its name."""
        ...

    def give_back(self, name: str, addresses: Iterable[str] = ()) -> None:
        """End a job."""
        ...

    def forget(self, name: str) -> None:
        """Ask about a job no more."""
        ...

    def look(self) -> None:
        """Ask about all jobs."""
        ...

    def log_tail(self, name: str) -> str:
        """Return the last lines of a job's log."""
        ...

    def write_list(self, jobs: Iterable[JobLine], waiting: Iterable[str]) -> None:
        """Record the state of all jobs."""
        ...


@dataclass(slots=True)
class ProvisionedJob:
    """A batch job that the provisioner asked for and that has not ended.

    Times are on the monotonic clock.
    """

    name: str
    num_nodes: int
    requested_s: float
    group: str | None = None
    job_id: str | None = None
    started_s: float | None = None
    view: JobView | None = None
    num_missing: int = 0
    incomplete_since_s: float | None = None
    end_s: float | None = None
    leaving_since_s: float | None = None
    nodes: list[Node] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)

    @property
    def is_up(self) -> bool:
        """All nodes of the job answer now."""
        return len(self.nodes) == self.num_nodes

    @property
    def has_answered(self) -> bool:
        """All nodes of the job have answered at some time."""
        return len(self.addresses) >= self.num_nodes

    @property
    def is_over(self) -> bool:
        """The walltime of the job is up, or nearly so."""
        return self.end_s is not None and time.monotonic() > self.end_s - NEARLY_S

    @property
    def is_pending(self) -> bool:
        """The job waits in the queue, as far as is known."""
        return self.view is None or self.view.state is JobState.PENDING

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds that the job waited in the queue; None: it still does."""
        return None if self.started_s is None else self.started_s - self.requested_s

    def see(self, view: JobView, now_s: float) -> None:
        """Record the state that the batch system shows of the job."""
        self.view, self.num_missing = view, 0
        if view.remaining_s is not None:
            # The earliest ever computed: what is known of the time used is never too
            # much, and may be minutes old.
            self.end_s = min(self.end_s or math.inf, now_s + view.remaining_s)
        if view.is_leaving:
            self.leaving_since_s = self.leaving_since_s or now_s
        self._begin(now_s)

    def is_leaving_for_long(self, now_s: float) -> bool:
        """Tell whether the job has been ending for longer than that takes."""
        since_s = self.leaving_since_s
        return since_s is not None and now_s > since_s + LEAVING_S

    def meet(self, nodes: list[Node], now_s: float) -> None:
        """Record which nodes of the job answer."""
        self.nodes = nodes
        self.addresses.update(node.address for node in nodes)
        if self.is_up or self.is_pending:
            self.incomplete_since_s = None
        elif self.incomplete_since_s is None:
            self.incomplete_since_s = now_s
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        # A node may answer before the queue is looked at again.
        if self.started_s is None and (self.nodes or not self.is_pending):
            self.started_s = now_s

    def line(self) -> JobLine:
        """Return the job's line in the list of jobs."""
        state = "up" if self.is_up else "pending" if self.is_pending else "running"
        view = self.view
        return JobLine(
            name=self.name,
            job_id=self.job_id,
            num_nodes=self.num_nodes,
            state=state,
            reason=view.reason if view and state != "up" else "",
            estimated_start=view.estimated_start if view and self.is_pending else None,
            node_group=self.group,
        )

"""Batch jobs that hold nodes of the sweep, and what trials wait for without them."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalelab.cluster.batch.nodes import BatchNodes
from scalelab.cluster.batch.queue import JobState, JobView
from scalelab.cluster.nodes import Node
from scalelab.inputs.numerals import counted
from scalelab.records.control.events import OnEvent, Waiting
from scalelab.records.control.job_list import JobLine
from scalelab.scheduling.pool import Pool

LEAVING_S = 15.0
"""How long a job may take to say how it ended."""
NEARLY_S = 5.0
"""Seconds that a job may end before its time, as far as that is known."""


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
        # a node may answer before the queue is looked at again
        has_begun = self.nodes or not self.is_pending
        state = "up" if self.is_up else "running" if has_begun else "pending"
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


class WaitingReport:
    """The report of what the sweep waits for, made whenever that changes."""

    def __init__(self, batch: BatchNodes, pool: Pool, on_event: OnEvent) -> None:
        self._batch = batch
        self._pool = pool
        self._on_event = on_event
        self._told: set[tuple[str, str, bool]] = set()
        self._written: tuple[list[JobLine], list[str]] | None = None

    def update(
        self, jobs: list[JobLine], troubles: Iterable[str], *, is_stopped: bool
    ) -> None:
        """Report the jobs and what the trials wait for, if either has changed."""
        waiting = [words for words in troubles if words]
        if not is_stopped:
            waiting += why_waiting(self._pool, jobs)
        if (jobs, waiting) == self._written:
            return

        self._written = (jobs, waiting)
        self._batch.write_list(jobs, waiting)
        for job in jobs:
            # That the queue changes its mind about the expected start is no news.
            news = (job.name, job.reason, job.estimated_start is None)
            if job.state == "pending" and job.reason and news not in self._told:
                self._told.add(news)
                self._on_event(Waiting(reason=str(job)))


def why_waiting(pool: Pool, jobs: Sequence[JobLine]) -> list[str]:
    """Return one sentence per allocation that lacks nodes, and one for the others."""
    sentences = []
    has_others = False
    for group, placer in pool.placers.items():
        waiting = placer.queue.allocations()
        lacking = [request for request in waiting if not placer.has_room(request)]
        has_others |= len(lacking) < len(waiting)

        for request in sorted(
            lacking,
            key=lambda request_lacking: (
                request_lacking.world_size,
                request_lacking.num_nodes,
            ),
        ):
            nodes = counted(request.num_nodes, f"{group} node" if group else "node")
            sentences.append(
                f"{counted(waiting[request], 'trial')} for {nodes} x "
                f"{counted(request.devices_per_node[0], 'device')}: "
                f"{_what_there_is(pool, jobs, group)}."
            )

    if has_others:
        # Without their number, which changes all the time.
        others = "the other trials" if sentences else "trials"
        sentences.append(f"{others} for devices that are in use.")

    return sentences


def _what_there_is(pool: Pool, jobs: Sequence[JobLine], group: str | None) -> str:
    nodes = [node for node in pool.nodes if node.group == group]
    parts = [f"{counted(len(nodes), 'node')} up"]
    for state, words in (("running", "starting"), ("pending", "in the queue")):
        those = [job for job in jobs if job.state == state and job.node_group == group]
        if those:
            reasons = dict.fromkeys(job.reason for job in those if job.reason)
            why = f" ({', '.join(reasons)})" if reasons else ""
            parts.append(f"{sum(job.num_nodes for job in those)} {words}{why}")
    return ", ".join(parts)

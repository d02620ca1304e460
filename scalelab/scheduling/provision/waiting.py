"""The reasons why trials wait, for status and progress of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scalelab.inputs.numerals import counted
from scalelab.records.control.events import OnEvent, Waiting
from scalelab.records.control.job_list import JobLine
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.jobs import Batch


class QueueNews:
    """Tells why jobs wait, each reason of a job once.

    That the queue changes its mind about the expected start is no news.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._told: set[tuple[str, str, bool]] = set()

    def tell(self, jobs: Iterable[JobLine]) -> None:
        """Tell what is new of the batch jobs that have not ended."""
        for job in jobs:
            news = (job.name, job.reason, job.estimated_start is None)
            is_waiting = job.state == "pending" and job.reason
            if is_waiting and news not in self._told:
                self._told.add(news)
                self._on_event(Waiting(reason=str(job)))


class WaitingReport:
    """The report of what the sweep waits for, made whenever that changes."""

    def __init__(self, batch: Batch, pool: Pool, on_event: OnEvent) -> None:
        self._batch = batch
        self._pool = pool
        self._news = QueueNews(on_event)
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
        self._news.tell(jobs)


def why_waiting(pool: Pool, jobs: Sequence[JobLine]) -> list[str]:
    """Return one sentence per allocation that lacks nodes, and one for the others."""
    sentences = []
    has_others = False
    for group, placer in pool.placer.groups.items():
        waiting = placer.queue.allocations()
        lacking = [each for each in waiting if not placer.has_room(each)]
        has_others |= len(lacking) < len(waiting)
        for each in sorted(lacking, key=lambda each: (each.world_size, each.num_nodes)):
            nodes = counted(each.num_nodes, f"{group} node" if group else "node")
            sentences.append(
                f"{counted(waiting[each], 'trial')} for {nodes} x "
                f"{counted(each.devices_per_node[0], 'device')}: "
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

"""The nodes of batch jobs: jobs submitted, watched and given back."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scalelab.cluster.batch.queue import (
    CALL_TIMEOUT_S,
    JobRefused,
    JobState,
    JobSubmitted,
    QueueEvent,
    QueueSeen,
    batch_client,
    cancelled,
    submitted,
    survey,
)
from scalelab.cluster.hub import HubCluster
from scalelab.cluster.survey.inventory import asked_queue, why_no_node_fits
from scalelab.errors import BusyError, ClusterError
from scalelab.inputs.plain_files import last_log_lines
from scalelab.records.control.job_list import JobLine, JobList
from scalelab.site.batch_site import BatchSite
from scalelab.site.job_script import node_job_script

# What a job may take to end by itself before it is cancelled.
_LEAVE_S = 15.0
_LOOK_AGAIN_S = 0.5


class BatchNodes(HubCluster):
    """The nodes of batch jobs, which are submitted and ended one by one as asked.

    How many nodes there should be is the driver's decision. Requests return at once;
    what comes of them is delivered.
    """

    site: BatchSite

    def __init__(self, site: BatchSite, **options: Any) -> None:
        super().__init__(site, **options)
        # Every job that was taken and is not known to have ended, also while it is
        # being given back.
        self._jobs: dict[str, JobLine] = {}
        self._ending: set[str] = set()
        self._deliver: Callable[[QueueEvent], None] = lambda event: None
        self._tasks: set[Future[None]] = set()

    def _start(self) -> None:
        self._refuse_what_would_wait_for_ever()
        self._client = batch_client(self.site.scheduler)
        super()._start()
        left = JobList.read(self._directory)
        self._last_number = left.last_number
        # Jobs that a dead driver has left, and could not cancel.
        self._jobs = {line.name: line for line in left.jobs if line.job_id is not None}

        with suppress(TimeoutError):
            self.wait_for(self._end(list(self._jobs), []), CALL_TIMEOUT_S)

        self._stack.callback(self._end_jobs)

    def _refuse_what_would_wait_for_ever(self) -> None:
        """Refuse nodes that are larger than any there is.

        Some batch systems take such a job, and it waits. Those that can be asked
        beforehand refuse it themselves.
        """
        system = self.site.batch_system
        if system.test_submission:
            return

        try:
            inventory = survey(system)
        except ClusterError:
            return  # it does not say what there is

        for name, group in self.site.groups.items():
            queue = asked_queue(group, inventory)
            if queue and (why := why_no_node_fits(group, queue)):
                raise ClusterError(f"node_group {name}: {why}" if name else why)

    def _end_jobs(self) -> None:
        with suppress(ClusterError, TimeoutError):
            self.wait_for(self._end_all(), CALL_TIMEOUT_S)
        # What could not be cancelled is left to the run's next driver.
        self.write_list((), ())

    def attend(self, deliver: Callable[[QueueEvent], None]) -> None:
        """Deliver the results of job requests and queue polls from now on."""
        self._deliver = deliver

    def request(self, num_nodes: int, group: str | None = None) -> str:
        """Submit a job for nodes of a group; return its name at once."""
        name = f"{self._run_name}-{self._last_number + 1}"
        # In this thread an error ends the sweep; in a task nobody would see it.
        site, directory = self.site.groups[group], self._directory
        script = node_job_script(site, num_nodes, job_name=name, directory=directory)
        self._last_number += 1
        self._begin(self._submit(name, script, num_nodes))
        return name

    def give_back(self, name: str, addresses: Iterable[str] = ()) -> None:
        """End a job: close its workers if they can be reached, else cancel it."""
        self._begin(self._end([name], list(addresses)))

    def forget(self, name: str) -> None:
        """Stop asking about a job, because it has ended."""
        self.loop.call_soon_threadsafe(self._jobs.pop, name, None)

    def look(self) -> None:
        """Ask the batch system about all jobs that are not being given back."""
        self._begin(self._look())

    def log_tail(self, name: str) -> str:
        """Return the last lines of a job's log."""
        return last_log_lines(self._directory / f"{name}.log")

    def write_list(self, jobs: Iterable[JobLine], waiting: Iterable[str]) -> None:
        """Record the state of all jobs, for ``scalelab status`` and for a later driver.

        Jobs that are being given back, or could not be cancelled, now or by an earlier
        driver, are among them.
        """
        lines = {line.name: line for line in jobs}
        kept = list(self._jobs.values())
        JobList(
            jobs=(*lines.values(), *(line for line in kept if line.name not in lines)),
            waiting=tuple(waiting),
            last_number=self._last_number,
        ).write(self._directory)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, name: str, script: str, num_nodes: int) -> None:
        try:
            job_id = await submitted(self._client.job(name, script))
        except ClusterError as error:
            is_busy = isinstance(error, BusyError)
            self._deliver(JobRefused(name, str(error), is_busy))
            return

        self._jobs[name] = JobLine(
            name=name, job_id=job_id, num_nodes=num_nodes, state="pending"
        )
        self._deliver(JobSubmitted(name, job_id))

    async def _look(self) -> None:
        asked = {
            name: line.job_id or ""
            for name, line in self._jobs.items()
            if name not in self._ending
        }
        try:
            views = await self._client.look(asked) if asked else {}
        except ClusterError as error:
            self._deliver(QueueSeen({}, frozenset(asked), str(error)))
            return

        self._deliver(QueueSeen(views, frozenset(asked)))

    async def _end(self, names: list[str], addresses: list[str]) -> None:
        ending = {name for name in names if name in self._jobs} - self._ending
        self._ending |= ending
        for name in ending:
            self._jobs[name] = replace(self._jobs[name], state="being given back")

        try:
            left = ending
            if addresses:
                # A job that ends by itself is not counted as cancelled.
                await self.close_workers(addresses)
                left = await self._await_end(ending)
            await asyncio.gather(*map(self._cancel, left))
        finally:  # also where there was no time left
            self._ending -= ending

    async def _cancel(self, name: str) -> None:
        """Cancel a job; if that fails, keep it and try again at the end."""
        line = self._jobs[name]
        try:
            await cancelled(self._client.job(name, job_id=line.job_id))
            self._jobs.pop(name, None)
        except ClusterError as error:
            if name in self._jobs:
                failed = replace(line, state="not cancelled", reason=str(error))
                self._jobs[name] = failed

    async def _await_end(self, names: set[str]) -> set[str]:
        """Wait a while for jobs that end by themselves; return those to be cancelled.

        Jobs in the queue are not waited for.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _LEAVE_S

        waiting, queued = set(names), set[str]()
        while waiting and loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_AGAIN_S)
            ids = {name: self._jobs[name].job_id or "" for name in waiting}
            try:
                views = await self._client.look(ids)
            except ClusterError:
                break

            for name in ids:
                view = views.get(name)
                if view is None or view.is_leaving or view.state is JobState.ENDED:
                    self._jobs.pop(name, None)
                    waiting.discard(name)
                elif view.state is JobState.PENDING:
                    queued.add(name)
                    waiting.discard(name)

        return waiting | queued

    async def _end_all(self) -> None:
        await self._end(list(self._jobs), self.workers)
        # Those that were being given back already.
        tasks = map(asyncio.wrap_future, self._tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

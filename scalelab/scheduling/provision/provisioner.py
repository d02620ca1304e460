"""The provisioner: keeps the number of nodes that the waiting trials need.

Three views are brought together at every tick: what the batch system shows of the jobs,
which nodes have answered over Dask, and what the plan still needs.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scalelab.cluster.batch.nodes import BatchNodes
from scalelab.cluster.batch.queue import (
    MISSING_LOOKS,
    EndCause,
    JobRefused,
    JobState,
    JobSubmitted,
    QueueEvent,
    QueueSeen,
)
from scalelab.cluster.dask_nodes import DaskNodes
from scalelab.cluster.nodes import Node
from scalelab.cluster.watch import NodeLeft
from scalelab.errors import ClusterError
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, Placement
from scalelab.records.control.events import OnEvent, Waiting
from scalelab.scheduling.gangs import LOST, PartEnded, Verdict
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.demand import GroupDemand, SubmissionBackoff
from scalelab.scheduling.provision.jobs import (
    ProvisionedJob,
    WaitingReport,
    why_waiting,
)

TICK_S = 0.5
RETURN_S = 120.0
"""Seconds that the nodes of a job that runs may be away before it is replaced."""


class Provision:
    """The provisioner: it submits jobs, replaces lost ones and ends unneeded ones.

    All methods belong to the driver's thread. :meth:`tick` is due at ``deadline_s``, on
    the monotonic clock.
    """

    def __init__(
        self,
        batch: BatchNodes,
        pool: Pool,
        *,
        leave: Callable[[str], None],
        on_event: OnEvent,
        deliver: Callable[[NodeLeft | PartEnded], None],
    ) -> None:
        self._batch = batch
        self._site = batch.site
        self._pool = pool
        self._leave = leave
        self._on_event = on_event
        self._jobs: dict[str, ProvisionedJob] = {}
        self._demands = {
            group: GroupDemand(site, pool.max_nodes[group])
            for group, site in batch.site.groups.items()
        }
        self.deadline_s = 0.0
        self._looks = QueueLooks(batch.look, batch.site.poll_interval)
        self._last_submission_s = -math.inf
        self._idle_since_s: float | None = None
        self._silence = ""
        self._losses = DelayedNodeLosses(deliver)
        self.explain = self._losses.explain
        self._report = WaitingReport(batch, pool, on_event)

    def queue_wait_s(self, placement: Placement) -> float | None:
        """Return the seconds a placement waited in the queue; None: not known."""
        names = {share.node.partition("/")[2] for share in placement.shares}
        waits = [job.queue_wait_s for name, job in self._jobs.items() if name in names]
        return max((wait for wait in waits if wait is not None), default=None)

    def is_exclusive(self, group: str | None) -> bool:
        """Tell whether nobody else can use the nodes of a group."""
        return self._site.groups[group].exclusive

    def record_success(self, group: str | None) -> None:
        """Record that a trial was measured on a group."""
        self._demands[group].record_success()

    def defer(self, message: NodeLeft | PartEnded) -> bool:
        """Delay a node-loss event until the batch system has said why, or a while.

        Nothing is placed on the node meanwhile.
        """
        if not self._losses.hold(message):
            return False
        if isinstance(message, NodeLeft):
            self._pool.leave(message.address)
        self._looks.next_s = 0.0
        self.deadline_s = 0.0
        return True

    def take(self, event: QueueEvent) -> None:
        """Record an answer of the batch system."""
        match event:
            case JobSubmitted(name, job_id):
                if job := self._jobs.get(name):
                    job.job_id = job_id
                    self._backoff_of(job).accepted()
            case JobRefused(name, words, is_busy):
                if job := self._jobs.pop(name, None):
                    backoff = self._backoff_of(job)
                    before = backoff.words
                    has_jobs = any(
                        job.job_id is not None for job in self._jobs.values()
                    )
                    backoff.refused(words, is_busy=is_busy, has_jobs=has_jobs)
                    if is_busy and backoff.words != before:
                        self._tell(backoff.words)  # once: others may be taken
            case QueueSeen():
                self._looks.end()
                self._see(event)

        self.deadline_s = 0.0

    def tick(self, *, is_stopped: bool) -> None:
        """Bring the jobs in line with what the trials need."""
        now_s = time.monotonic()
        if now_s < self.deadline_s:
            return

        self.deadline_s = now_s + TICK_S
        self._losses.release(now_s - HOLD_S)
        self.meet_nodes()

        wanted = {
            group: demand.num_wanted(self._pool, is_stopped=is_stopped)
            for group, demand in self._demands.items()
        }
        if not self._losses.held:
            # What ran there is about to wait again.
            for group, number in wanted.items():
                self._give_back(group, number, now_s)

        self._submit(wanted, now_s)
        if self._jobs:
            self._looks.begin(now_s)

        troubles = [self._silence, *(d.backoff.words for d in self._demands.values())]
        lines = [job.line() for job in self._jobs.values()]
        self._report.update(lines, troubles, is_stopped=is_stopped)
        self._check(wanted, now_s)

    def _tell(self, words: str) -> None:
        self._on_event(Waiting(reason=words))

    def _see(self, seen: QueueSeen) -> None:
        if seen.error and seen.error != self._silence:
            self._tell(seen.error)
        self._silence = seen.error
        if seen.error:
            return

        now_s = time.monotonic()
        for name in seen.asked & self._jobs.keys():
            job, view = self._jobs[name], seen.views.get(name)
            if view is None:
                job.num_missing += 1
                if job.num_missing >= MISSING_LOOKS and not job.nodes:
                    words = "the batch system does not know it any more"
                    self._ended(job, words, EndCause.OTHER)
                    self._batch.forget(name)
                continue

            if job.view is None or job.view.state is not view.state:
                self._looks.hurry()

            job.see(view, now_s)
            if view.state is JobState.ENDED or job.is_leaving_for_long(now_s):
                self._ended(job, view.reason, view.end_cause)
                self._batch.forget(name)
            elif view.is_suspended:
                # What it was measuring is spoilt, and nobody knows when it goes on.
                words = f"{view.reason}, so it was given up"
                self._ended(job, words, EndCause.PREEMPTED)
                self._batch.give_back(name)
            elif view.can_never_run:
                self._drop(job)
                self._backoff_of(job).refused(
                    f"job {job.job_id} can never run: {view.reason}"
                )

        if not any(job.leaving_since_s for job in self._jobs.values()):
            self._losses.release(self._looks.started_s)

    def _ended(self, job: ProvisionedJob, words: str, cause: EndCause) -> None:
        del self._jobs[job.name]
        if cause is EndCause.OTHER and job.is_over:
            cause = EndCause.TIME_LIMIT

        sentence = f"job {job.job_id} ({job.name}) ended: {words}"
        if not job.has_answered:
            self._backoff_of(job).failed_to_start(
                sentence, self._batch.log_tail(job.name)
            )
        elif cause is not EndCause.TIME_LIMIT:
            self._backoff_of(job).lost(sentence)

        self._losses.endings[job.name] = JobEnding(cause, sentence)
        for address in job.addresses:
            self._leave(address)

        self._tell(f"{sentence}.")

    def _drop(self, job: ProvisionedJob) -> None:
        del self._jobs[job.name]
        self._end(job.name, job.nodes)

    def _end(self, name: str, nodes: list[Node]) -> None:
        for node in nodes:
            self._pool.give_back(node.address)
        self._batch.give_back(name, [node.address for node in nodes])

    def meet_nodes(self) -> None:
        """Find out which jobs' nodes have answered, and say how long they last."""
        now_s = time.monotonic()
        nodes: dict[str, list[Node]] = {}
        for node in self._pool.nodes:
            nodes.setdefault(node.job, []).append(node)

        for name in nodes.keys() - self._jobs.keys():
            # Of a job that was given up: submitted although no answer came, say.
            self._end(name, nodes[name])

        for job in self._jobs.values():
            found = nodes.get(job.name, [])
            if len(found) != len(job.nodes):
                self._looks.hurry()
            job.meet(found, now_s)
            self._limit(job, now_s)

    def _limit(self, job: ProvisionedJob, now_s: float) -> None:
        demand = self._demands[job.group]
        walltime_s, end_s = demand.site.walltime, job.end_s
        if end_s is None and walltime_s and job.is_pending:
            # Seen to wait when it was last looked for, it has begun since.
            end_s = (self._looks.started_s or now_s) + walltime_s
            walltime_s = end_s - now_s

        if end_s is not None:
            longest_s = demand.fresh * (walltime_s or end_s - now_s)
            for node in job.nodes:
                self._pool.placers[node.group].limit(node.name, end_s, longest_s)

    def _jobs_of(self, group: str | None) -> list[ProvisionedJob]:
        return [job for job in self._jobs.values() if job.group == group]

    def _backoff_of(self, job: ProvisionedJob) -> SubmissionBackoff:
        return self._demands[job.group].backoff

    def _give_back(self, group: str | None, wanted: int, now_s: float) -> None:
        """End jobs that are not needed, those that wait first, or end too soon."""
        jobs = self._jobs_of(group)
        idle = [
            job
            for job in jobs
            if job.job_id is not None and not any(map(self._pool.is_busy, job.nodes))
        ]

        spare = self._demands[group].spare(jobs, idle, wanted)
        for job in idle:
            is_late = wanted and any(
                self._pool.placers[node.group].is_too_late(node.name, now_s)
                for node in job.nodes
            )
            if is_late:
                self._demands[group].num_exchanged += 1
                self._tell(
                    f"Job {job.job_id} ({job.name}) ends too soon for the trials that "
                    "wait, so it is given back for a newer one."
                )
            if is_late or job in spare:
                self._drop(job)

    def _submit(self, wanted: Mapping[str | None, int], now_s: float) -> None:
        while lacking := [
            group
            for group, number in wanted.items()
            if sum(job.num_nodes for job in self._jobs_of(group)) < number
            and self._may_submit(group, now_s)
        ]:
            group = min(
                lacking, key=lambda group_lacking: len(self._jobs_of(group_lacking))
            )
            size = wanted[group] if self._site.provision == "one_job" else 1
            name = self._batch.request(size, group)
            self._jobs[name] = ProvisionedJob(name, size, now_s, group)
            self._last_submission_s = now_s
            self._looks.hurry()

    def _may_submit(self, group: str | None, now_s: float) -> bool:
        site = self._site
        if site.provision == "one_job" and self._jobs_of(group):
            return False
        if site.max_jobs is not None and len(self._jobs) >= site.max_jobs:
            return False
        pause_s = site.submit_interval or 0.0
        if pause_s and now_s < self._last_submission_s + pause_s:
            return False
        return self._demands[group].backoff.allow(now_s)

    def _check(self, wanted: Mapping[str | None, int], now_s: float) -> None:
        """Give up jobs whose nodes do not answer, and end a sweep that cannot go on."""
        for job in list(self._jobs.values()):
            since_s = job.incomplete_since_s
            if since_s is None:
                continue

            up = f"{len(job.nodes)} of its {job.num_nodes} nodes"
            sentence = f"job {job.job_id} ({job.name}) runs, but {up} answered within "
            if not job.has_answered and now_s - since_s > self._site.start_timeout:
                self._drop(job)
                self._backoff_of(job).failed_to_start(
                    f"{sentence}{self._site.start_timeout:g} s",
                    self._batch.log_tail(job.name),
                )
            elif job.has_answered and now_s - since_s > RETURN_S:
                # Without power, say: the batch system may know of it minutes later.
                self._drop(job)
                self._backoff_of(job).lost(
                    f"{sentence}{RETURN_S:g} s after one was lost"
                )

        # What runs goes on; what waits may fit on what it leaves.
        if self._pool.num_held_devices or not any(wanted.values()):
            self._idle_since_s = None
            return

        verdicts = [
            self._demands[group].backoff.verdict
            if all(job.is_up for job in self._jobs_of(group))
            else ""  # its nodes may come
            for group in wanted
            if wanted[group]
        ]
        if all(verdicts):
            raise ClusterError(
                f"{verdicts[0]}\nWaiting trials: {self._pool.num_waiting}. "
                "What has ended is recorded; correct the site, or try later: "
                "the same command goes on."
            )

        if not self._pool.num_devices:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s > self._site.max_idle:
            num_up = sum(len(job.nodes) for job in self._jobs.values())
            waiting = why_waiting(self._pool, [j.line() for j in self._jobs.values()])
            raise ClusterError(
                f"{counted(num_up, 'node')} waited idle for {self._site.max_idle:g} s, "
                f"as a trial needs others besides. {' '.join(waiting)} Write "
                "provision: one_job in the site, so that all are granted together, or "
                "a longer max_idle."
            )


class NullProvisioner:
    """Answers as a provisioner does, and neither submits nor ends any job."""

    deadline_s: float | None = None

    def meet_nodes(self) -> None:
        """Do nothing."""

    def queue_wait_s(self, placement: Placement) -> None:
        """Return no waiting time: there is no queue."""

    def is_exclusive(self, group: str | None) -> None:
        """Return no answer: it is not known who else uses the nodes."""

    def record_success(self, group: str | None) -> None:
        """Count nothing: no job was submitted."""

    def take(self, event: QueueEvent) -> None:
        """Ignore the event: there is no queue."""

    def tick(self, *, is_stopped: bool) -> None:
        """Do nothing."""

    def defer(self, message: NodeLeft | PartEnded) -> bool:
        """Hold back no node loss: no batch system could explain it."""
        return False

    def explain(self, verdict: Verdict) -> AttemptResult:
        """Return the attempt's result as it is."""
        return verdict.result


def provision_of(
    cluster: DaskNodes,
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


FIRST_LOOK_S = 0.5
"""Seconds from a change to the next look at the queue."""


class QueueLooks:
    """The times at which the batch system is asked about all jobs."""

    def __init__(self, look: Callable[[], None], longest_s: float) -> None:
        self._look = look
        self._longest_s = longest_s
        # Of the next look and of the latest, on the monotonic clock.
        self.next_s = self.started_s = 0.0
        self._every_s = FIRST_LOOK_S
        self._is_looking = False

    def hurry(self) -> None:
        """Look soon, and then less and less often, because a job has changed."""
        self._every_s = FIRST_LOOK_S
        self.next_s = min(self.next_s, time.monotonic() + FIRST_LOOK_S)

    def begin(self, now_s: float) -> None:
        """Look at the queue if that is due and the last look has been answered."""
        if not self._is_looking and now_s >= self.next_s:
            self._is_looking = True
            self.started_s = now_s
            self._look()
            self.next_s = now_s + self._every_s
            self._every_s = min(self._every_s * 2, self._longest_s)

    def end(self) -> None:
        """Record that the latest look has been answered."""
        self._is_looking = False


HOLD_S = 20.0
"""How long the batch system may take to say why a node was lost."""

Loss = NodeLeft | PartEnded


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job ended that should not have: the cause, and a sentence without stop."""

    cause: EndCause
    words: str


class DelayedNodeLosses:
    """Delays node-loss events until the batch system has reported why the job ended."""

    def __init__(self, deliver: Callable[[Loss], None]) -> None:
        self._deliver = deliver
        self.held: list[tuple[float, Loss]] = []  # each with the moment since when
        self._released: set[int] = set()
        self.endings: dict[str, JobEnding] = {}  # by the job's name

    def hold(self, message: Loss) -> bool:
        """Hold back a message if it is a node loss that was not held back before."""
        if isinstance(message, PartEnded) and not isinstance(message.value, LOST):
            return False
        if id(message) in self._released:
            self._released.discard(id(message))
            return False
        self.held.append((time.monotonic(), message))
        return True

    def release(self, before_s: float) -> None:
        """Deliver the events that have been held back since before a moment."""
        due = [message for since_s, message in self.held if since_s < before_s]
        self.held = self.held[len(due) :]
        for message in due:
            self._released.add(id(message))
            self._deliver(message)

    def explain(self, verdict: Verdict) -> AttemptResult:
        """Return an attempt's result, with what the batch system said of its loss."""
        result = verdict.result
        jobs = [share.node.partition("/")[2] for share in verdict.spec.placement.shares]
        endings = [self.endings[job] for job in jobs if job in self.endings]
        if result.outcome is not Outcome.NODE_FAIL or not endings:
            return result
        ending = endings[0]
        is_lost = ending.cause is EndCause.OTHER
        outcome = Outcome.NODE_FAIL if is_lost else Outcome.PREEMPTED
        return replace(result, outcome=outcome, reason=f"{ending.words}.")

"""The programs of PBS Professional, OpenPBS and Torque: jobs submitted and seen."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from scalelab.cluster.batch.pbs_inventory import (
    RESERVATION,
    Reservation,
    inventory,
    moment,
)
from scalelab.cluster.batch.programs import answered, ask, job_class, scripted_job
from scalelab.cluster.batch.queue import BatchJob, EndCause, JobState, JobView, seconds
from scalelab.cluster.survey.inventory import Inventory
from scalelab.errors import ClusterError

# Q queued, W waiting for its start time, T moved, H held; S and U are suspended.
_PENDING, _RUNNING = "QWTH", "RSUB"
_UNKNOWN_JOB, _FINISHED_JOB = 153, 35
_NONE = re.compile(r"Unknown Job|has finished")
_WALLTIME_EXCEEDED = "-29"
# A node's MoM looks at a job after 10 s and then less and less often, at last every
# 120 s; the walltime used stands still in between.
_MAX_USED_AGE_S = 130.0
_JOB = re.compile(r"^Job Id: (\S+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ {4}(\S+) = (.*)$", re.MULTILINE)
# The server or a MoM is away or overloaded, or the user has too many jobs: worth
# another try.
_BUSY = re.compile(
    r"(can ?not|could ?n[o']t|unable to) (connect|contact)|connection (refused|reset)"
    r"|timed out|not respond|communication|end of file|temporar|try again"
    r"|would exceed|job limit|maximum number of jobs",
    re.IGNORECASE,
)
# The id is kept whole, with the server's name: where there are several servers, the
# number alone is another job.
_JOB_ID = r"(?P<job_id>\d+\S*)"


class PbsClient:
    """PBS, through ``qsub``, ``qstat``, ``qdel`` and ``pbsnodes``."""

    def __init__(self) -> None:
        self._job_class = job_class("dask_jobqueue.pbs:PBSJob")
        self._reservation_ends: dict[str, float | None] = {}

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchClient`."""
        return scripted_job(
            self._job_class, name, script, job_id, busy=_BUSY, job_id_regexp=_JOB_ID
        )

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``qstat`` shows of jobs; see :class:`BatchClient`.

        A job that has ended is unknown where the server keeps no history. One that
        is neither shown nor called unknown is asked about alone.
        """
        seen, gone = await _shown([*jobs.values()])
        for job_id in jobs.values():
            if job_id not in seen and job_id not in gone:
                alone, gone_alone = await _shown([job_id])
                if job_id not in alone and job_id not in gone_alone:
                    raise ClusterError(
                        f"qstat neither shows job {job_id} nor says that it is unknown."
                    )
                seen, gone = seen | alone, gone | gone_alone
        if kept := [job_id for job_id, is_in_history in gone.items() if is_in_history]:
            ended, _ = await _shown(kept, "-x")
            seen |= ended
        return {
            name: await self._view(seen[job_id])
            for name, job_id in jobs.items()
            if job_id in seen
        }

    async def _view(self, job: Mapping[str, str]) -> JobView:
        view, now_s = _view(job), time.time()
        end_s = await self._reservation_end(job.get("queue", ""))
        if view.remaining_s is None or end_s is None:
            return view
        return replace(view, remaining_s=min(view.remaining_s, end_s - now_s))

    async def _reservation_end(self, queue: str) -> float | None:
        """Return when the reservation that a queue belongs to ends; None: to none."""
        if not RESERVATION.fullmatch(queue):
            return None
        if queue not in self._reservation_ends:
            with suppress(ClusterError):  # a queue that is only called like one
                answer = await ask(["pbs_rstat", "-f", queue])
                if not answer.status:
                    end_s = Reservation.read(answer.output).end_s
                    self._reservation_ends[queue] = end_s
        return self._reservation_ends.get(queue)

    @staticmethod
    def survey() -> Inventory:
        """Return what ``pbsnodes`` and ``qstat`` list; see :class:`BatchClient`."""
        return inventory()

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Read it from the server's ``flatuid``; see :class:`BatchClient`."""
        said = answered(["qstat", "-B", "-f"])
        return True if re.search(r"\bflatuid = True", said.output) else None


async def _shown(
    job_ids: Sequence[str], *options: str
) -> tuple[dict[str, dict[str, str]], dict[str, bool]]:
    """Return the attributes of jobs by id, and those called unknown or finished.

    Of the latter: whether the server's history has them.

    As text, which every PBS prints for all jobs: as JSON, OpenPBS since December 2023
    prints the first of several only.
    """
    answer = await ask(["qstat", *options, "-f", *job_ids])
    lines = [line for line in answer.errors.splitlines() if _NONE.search(line)]
    gone = {
        job_id: "finished" in line
        for line in lines
        for job_id in job_ids
        if job_id in line.split()
    }
    are_gone = answer.status in (_UNKNOWN_JOB, _FINISHED_JOB) or bool(lines)
    if answer.status and not are_gone:
        raise ClusterError(f"qstat: {answer.errors or answer.status}")
    if are_gone and len(job_ids) == 1:
        gone.setdefault(job_ids[0], answer.status == _FINISHED_JOB)
    # long values go on in lines that begin with a tab
    _, *parts = _JOB.split(answer.output.replace("\n\t", ""))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {job_id: dict(_ATTRIBUTE.findall(text)) for job_id, text in pairs}, gone


def _view(job: Mapping[str, str]) -> JobView:
    letter, comment = job.get("job_state", ""), job.get("comment", "").strip()
    if letter in _PENDING:
        state = JobState.PENDING
    elif letter in _RUNNING:
        state = JobState.RUNNING
    else:
        state = JobState.ENDED
    status, is_suspended = job.get("Exit_status"), letter in ("S", "U")
    end_cause = EndCause.PREEMPTED if is_suspended else EndCause.OTHER
    if status == _WALLTIME_EXCEEDED:
        end_cause = EndCause.TIME_LIMIT
    reason = comment if state is JobState.PENDING else ""
    if letter == "H":
        reason = f"held. {comment}".strip()
    elif is_suspended:
        reason = "suspended"
    elif state is JobState.ENDED:
        ended = "ended" if status is None else f"ended with status {status}"
        reason = f"{ended}. {comment}" if comment else ended
    return JobView(
        state=state,
        reason=reason,
        can_never_run="Can Never Run" in comment or letter == "H",
        estimated_start=job.get("estimated.start_time"),
        remaining_s=_remaining_s(job) if state is JobState.RUNNING else None,
        is_leaving=letter == "E",
        is_suspended=is_suspended,
        end_cause=end_cause,
    )


def _remaining_s(job: Mapping[str, str]) -> float | None:
    limit_s = seconds(job.get("Resource_List.walltime", ""))
    if limit_s is None:
        return None
    # It is absent just after the start.
    used_s = seconds(job.get("resources_used.walltime", "")) or 0.0
    begun_s = moment(job.get("stime", ""))
    if begun_s is not None:
        # Where the clocks of server and driver disagree, not more than may be true.
        used_s = min(max(time.time() - begun_s, used_s), used_s + _MAX_USED_AGE_S)
    return limit_s - used_s

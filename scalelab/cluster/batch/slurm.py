"""Jobs of SLURM."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from dask_jobqueue.slurm import SLURMJob

from scalelab.cluster.batch.queue import (
    Answer,
    BatchJob,
    JobState,
    JobView,
    ask,
    seconds,
)
from scalelab.cluster.batch.scripted_job import ScriptedJob
from scalelab.errors import ClusterError

# State, reason, expected start, time left; a name may hold what separates, so it is
# not among them.
_FORMAT = "%i|%T|%r|%S|%L"
_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD")
_LEAVING = "COMPLETING"
_SUSPENDED = ("SUSPENDED", "STOPPED")
_RUNNING = (
    _LEAVING,
    "RUNNING",
    *_SUSPENDED,
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
)
# Reasons that no waiting resolves. What other jobs may give back ("AssocGrp...",
# "QOSMaxJobs...", "Resources") is not among them.
_NEVER = re.compile(
    r"Partition(TimeLimit|NodeLimit|Inactive)|BadConstraints|AccountNotAllowed"
    r"|QOSNotAllowed|QOSTimeLimit|Invalid(Account|QOS)|JobHeld(Admin|User)"
    r"|DependencyNeverSatisfied|\w*PerJob(Limit)?$|\w*MaxWallDuration\w*"
)


class _SlurmJob(ScriptedJob, SLURMJob):
    def __init__(self, name: str, script: str, job_id: str | None) -> None:
        super().__init__(name, script, job_id)
        # A number may have been given to another job since.
        self.cancel_command = f"scancel --name={shlex.quote(name)}"


class Slurm:
    """SLURM, through ``sbatch``, ``squeue`` and ``scancel``."""

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchSystem`."""
        return _SlurmJob(name, script, job_id)

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``squeue`` shows of jobs; see :class:`BatchSystem`."""
        ids = ",".join(jobs.values())
        answer = await ask(
            ["squeue", "--noheader", "--states=all", f"--jobs={ids}", "-o", _FORMAT]
        )
        _require_answer(answer)
        seen = dict(map(_line, filter(None, answer.output.splitlines())))
        return {name: seen[job_id] for name, job_id in jobs.items() if job_id in seen}


def _require_answer(answer: Answer) -> None:
    # Said where it knows none of the jobs any more.
    is_unknown = "Invalid job id" in answer.errors
    if answer.status and not is_unknown:
        raise ClusterError(f"squeue: {answer.errors or answer.status}")


def _line(line: str) -> tuple[str, JobView]:
    job_id, word, reason, start, left = line.strip().split("|", 4)
    if word in _PENDING:
        state = JobState.PENDING
    elif word in _RUNNING:
        state = JobState.RUNNING
    else:
        state = JobState.ENDED
    reason = "" if reason == "None" else reason
    if state is not JobState.PENDING and word != "RUNNING":
        reason = f"{word} ({reason})" if reason else word
    view = JobView(
        state=state,
        reason=reason,
        can_never_run=state is JobState.PENDING and bool(_NEVER.match(reason)),
        estimated_start=None if start in ("N/A", "") else start,
        remaining_s=seconds(left) if word == "RUNNING" else None,
        is_leaving=word == _LEAVING,
        is_suspended=word in _SUSPENDED,
    )
    return job_id, view

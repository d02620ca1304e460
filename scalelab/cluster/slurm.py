"""Jobs of SLURM."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from dask_jobqueue.slurm import SLURMJob

from scalelab.cluster.batch_queue import Answer, BatchJob, JobState, JobView, ask
from scalelab.errors import ClusterError

# State, reason, expected start, time left; a name may hold what separates, so it is
# not among them.
_FORMAT = "%i|%T|%r|%S|%L"
_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD")
_LEAVING = "COMPLETING"
_RUNNING = (
    _LEAVING,
    "RUNNING",
    "SUSPENDED",
    "STOPPED",
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
_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)")


class _ScriptedJob(SLURMJob):
    """A job of dask-jobqueue with a script of ScaleLab's.

    Its own asks for ``-n 1``, one process's memory and no GPU.
    """

    def __init__(self, address: str, name: str, script: str) -> None:
        # Required, and meant for the script that is not used.
        unused: dict[str, Any] = {"cores": 1, "memory": "1GB"}
        super().__init__(address, name, job_name=name, **unused)  # type: ignore[no-untyped-call]
        self._script = script
        # A number may have been given to another job since.
        self.cancel_command = f"scancel --name={shlex.quote(name)}"

    def job_script(self) -> str:
        return self._script


class Slurm:
    """SLURM, through ``sbatch``, ``squeue`` and ``scancel``."""

    def job(self, address: str, name: str, script: str) -> BatchJob:
        """Return a job that is not submitted yet."""
        job: BatchJob = _ScriptedJob(address, name, script)
        return job

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
    )
    return job_id, view


def seconds(clock: str) -> float | None:
    """Return the seconds of SLURM's ``D-HH:MM:SS``; None for ``UNLIMITED`` and such.

    >>> seconds("1-02:00:05"), seconds("9:58"), seconds("UNLIMITED")
    (93605.0, 598.0, None)
    """
    found = _CLOCK.fullmatch(clock.strip())
    if found is None:
        return None
    parts = [int(found[name] or 0) for name in "dhms"]
    return float(((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3])

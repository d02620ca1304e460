"""Jobs of PBS Professional, OpenPBS and Torque."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dask_jobqueue.pbs import PBSJob

from scalelab.cluster.batch.queue import BatchJob, JobState, JobView, ask, seconds
from scalelab.cluster.batch.scripted_job import ScriptedJob
from scalelab.errors import ClusterError

# Q queued, W waiting for its start time, T moved, H held; S and U are suspended.
_PENDING, _RUNNING = "QWTH", "RSUB"
_UNKNOWN_JOB, _FINISHED_JOB = 153, 35
_UNKNOWN = ("Unknown Job", "has finished")


class _PbsJob(ScriptedJob, PBSJob):
    """A job whose id is kept whole, with the server's name.

    The number alone is another job where there are several servers.
    """

    job_id_regexp = r"(?P<job_id>\d+\S*)"


class Pbs:
    """PBS, through ``qsub``, ``qstat`` and ``qdel``."""

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchSystem`."""
        return _PbsJob(name, script, job_id)

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``qstat`` shows of jobs; see :class:`BatchSystem`.

        A job that has ended is known no more where the server keeps no history.
        """
        answer = await ask(["qstat", "-f", "-F", "json", *jobs.values()])
        is_unknown = answer.status in (_UNKNOWN_JOB, _FINISHED_JOB) or any(
            words in answer.errors for words in _UNKNOWN
        )
        if answer.status and not is_unknown:
            raise ClusterError(f"qstat: {answer.errors or answer.status}")
        try:
            said = json.loads(answer.output or "{}").get("Jobs", {})
        except ValueError as error:
            raise ClusterError(f"qstat said no JSON: {error}") from error
        return {
            name: _view(said[job_id]) for name, job_id in jobs.items() if job_id in said
        }


def _view(job: Mapping[str, Any]) -> JobView:
    # qstat makes numbers of all that look like one.
    letter, comment = str(job.get("job_state", "")), str(job.get("comment", ""))
    if letter in _PENDING:
        state = JobState.PENDING
    elif letter in _RUNNING:
        state = JobState.RUNNING
    else:
        state = JobState.ENDED
    reason = comment if state is JobState.PENDING else ""
    if letter == "H":
        reason = f"held. {comment}".strip()
    elif letter in "SU":
        reason = "suspended"
    elif state is JobState.ENDED:
        reason = _ending(job)
    estimated = job.get("estimated", {})
    start = estimated.get("start_time") if isinstance(estimated, dict) else None
    return JobView(
        state=state,
        reason=reason,
        can_never_run="Can Never Run" in comment or letter == "H",
        estimated_start=None if start is None else str(start),
        remaining_s=_remaining_s(job) if state is JobState.RUNNING else None,
        is_suspended=letter in ("S", "U"),
    )


def _ending(job: Mapping[str, Any]) -> str:
    status = job.get("Exit_status")
    comment = str(job.get("comment", "")).strip()
    ended = "ended" if status is None else f"ended with status {status}"
    return f"{ended}. {comment}".strip() if comment else ended


def _remaining_s(job: Mapping[str, Any]) -> float | None:
    limit = seconds(_resource(job, "Resource_List"))
    used = seconds(_resource(job, "resources_used"))
    # It is absent just after the start.
    return None if limit is None else limit - (used or 0.0)


def _resource(job: Mapping[str, Any], table: str) -> str:
    values = job.get(table, {})
    return str(values.get("walltime", "")) if isinstance(values, dict) else ""

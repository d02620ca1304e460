"""Jobs of PBS Professional, OpenPBS and Torque."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dask_jobqueue.pbs import PBSJob

from scalelab.cluster.batch_queue import BatchJob, JobState, JobView, ask
from scalelab.errors import ClusterError

# Q queued, W waiting for its start time, T moved, H held; S and U are suspended.
_PENDING, _RUNNING = "QWTH", "RSUB"
_UNKNOWN_JOB, _FINISHED_JOB = 153, 35
_UNKNOWN = ("Unknown Job", "has finished")


class _ScriptedJob(PBSJob):
    """A job of dask-jobqueue with a script of ScaleLab's.

    Its own asks for one chunk and no GPU. The id is kept whole, with the server's name:
    the number alone is another job where there are several servers.
    """

    job_id_regexp = r"(?P<job_id>\d+\S*)"

    def __init__(self, address: str, name: str, script: str) -> None:
        # Required, and meant for the script that is not used.
        unused: dict[str, Any] = {"cores": 1, "memory": "1GB"}
        super().__init__(address, name, job_name=name, **unused)  # type: ignore[no-untyped-call]
        self._script = script

    def job_script(self) -> str:
        return getattr(self, "_script", "")


class Pbs:
    """PBS, through ``qsub``, ``qstat`` and ``qdel``."""

    def job(self, address: str, name: str, script: str) -> BatchJob:
        """Return a job that is not submitted yet."""
        job: BatchJob = _ScriptedJob(address, name, script)
        return job

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


def seconds(clock: str) -> float | None:
    """Return the seconds of PBS's ``HH:MM:SS``; None for anything else.

    >>> seconds("100:00:20")
    360020.0
    """
    found = re.fullmatch(r"(\d+):(\d+):(\d+)", clock)
    if found is None:
        return None
    hours, minutes, rest = map(int, found.groups())
    return float(hours * 3600 + minutes * 60 + rest)

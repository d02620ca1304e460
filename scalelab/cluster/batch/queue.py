"""The queue of a batch system: jobs submitted, looked at and cancelled."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scalelab.errors import BusyError, ClusterError

CALL_TIMEOUT_S = 60.0
MISSING_LOOKS = 2
"""Looks in a row in which a queue must not name a job to have forgotten it."""
_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)")


class JobState(StrEnum):
    """The state of a batch job."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class EndCause(StrEnum):
    """Why a batch job ended, or is suspended."""

    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """One job as the batch system shows it.

    Parameters
    ----------
    remaining_s
        Seconds until its time limit; None: unknown or without limit.
    """

    state: JobState
    reason: str = ""
    can_never_run: bool = False
    estimated_start: str | None = None
    remaining_s: float | None = None
    is_leaving: bool = False
    is_suspended: bool = False
    end_cause: EndCause = EndCause.OTHER


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The batch system took a job."""

    name: str
    job_id: str


@dataclass(frozen=True, slots=True)
class JobRefused:
    """The batch system did not take a job; where it is busy, it may take it later."""

    name: str
    words: str
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """The jobs as the batch system shows them.

    Parameters
    ----------
    views
        By name; a job that it does not know is not among them.
    asked
        The names of the jobs it was asked about.
    error
        Why it did not answer; empty where it did.
    """

    views: dict[str, JobView]
    asked: frozenset[str]
    error: str = ""


QueueEvent = JobSubmitted | JobRefused | QueueSeen


class BatchJob(Protocol):
    """A job of dask-jobqueue: its script submitted and, if need be, cancelled."""

    job_id: str | None

    async def start(self) -> None:
        """Submit it."""
        ...

    async def close(self) -> None:
        """Cancel it."""
        ...


def scheduler_words(error: Exception) -> str:
    """Return the batch system's message about a job, in one line."""
    return " ".join(str(error).split())


async def submitted(job: BatchJob) -> str:
    """Submit a job and return its id."""
    try:
        await asyncio.wait_for(job.start(), CALL_TIMEOUT_S)
    except TimeoutError as error:
        raise _no_answer() from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(scheduler_words(error)) from error
    assert job.job_id is not None
    return job.job_id


async def cancelled(job: BatchJob) -> None:
    """Cancel a job, if it has not ended."""
    try:
        await asyncio.wait_for(job.close(), CALL_TIMEOUT_S)
    except TimeoutError as error:
        raise _no_answer() from error
    except OSError as error:
        raise ClusterError(str(error)) from error


def _no_answer() -> BusyError:
    return BusyError(f"it did not answer within {CALL_TIMEOUT_S:g} s")


def seconds(clock: str) -> float | None:
    """Return the seconds of ``D-HH:MM:SS``; None for ``UNLIMITED`` and such.

    >>> seconds("1-02:00:05"), seconds("9:58"), seconds("UNLIMITED")
    (93605.0, 598.0, None)
    """
    found = _CLOCK.fullmatch(clock.strip())
    if found is None:
        return None
    parts = [int(found[name] or 0) for name in "dhms"]
    return float(((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3])

"""What a batch system says about jobs, whichever it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from scalelab.errors import ClusterError

CALL_TIMEOUT_S = 60.0


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """One job as the batch system shows it.

    Parameters
    ----------
    state
        Where it stands.
    reason
        In the batch system's words: why it waits, or how it ended.
    can_never_run
        The batch system says so, or waits for what nobody will do.
    estimated_start
        When it is expected to start, in the batch system's words.
    remaining_s
        Seconds until its time limit; None: unknown or without limit.
    is_leaving
        It runs no more, and how it ended is not said yet.
    """

    state: JobState
    reason: str = ""
    can_never_run: bool = False
    estimated_start: str | None = None
    remaining_s: float | None = None
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The batch system took a job."""

    name: str
    job_id: str


@dataclass(frozen=True, slots=True)
class JobRefused:
    """The batch system did not take a job."""

    name: str
    words: str


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """What the batch system shows of the jobs it took.

    Parameters
    ----------
    views
        By name; a job it does not know any more is not among them.
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


class BatchSystem(Protocol):
    """SLURM or PBS."""

    def job(self, address: str, name: str, script: str) -> BatchJob:
        """Return a job that is not submitted yet."""
        ...

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what is known of jobs, both by name.

        Parameters
        ----------
        jobs
            Job ids by name. One that the batch system does not know is left out.

        Raises
        ------
        ClusterError
            If it does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said, and its status."""

    status: int
    output: str
    errors: str


async def ask(argv: Sequence[str]) -> Answer:
    """Run a program of the batch system.

    Raises
    ------
    ClusterError
        If it is not there or does not end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ClusterError(
            f"{argv[0]} cannot be run here: {error.strerror}. Sweep from a machine "
            "where it can."
        ) from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(), CALL_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ClusterError(
            f"{argv[0]} did not answer within {CALL_TIMEOUT_S:g} s."
        ) from None
    assert process.returncode is not None
    return Answer(process.returncode, output.decode(), errors.decode().strip())


_WORDS = re.compile(r"stderr:\n(?P<errors>.*)", re.DOTALL)


def scheduler_words(error: Exception) -> str:
    """Return what the batch system said when dask-jobqueue could not submit."""
    found = _WORDS.search(str(error))
    words = found["errors"].strip() if found else ""
    return " ".join((words or str(error)).split())


def log_tail(log: Path, num_lines: int = 8) -> str:
    """Return the last lines of a job's log; empty where it has said nothing."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-num_lines:])

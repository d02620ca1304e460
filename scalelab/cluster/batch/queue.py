"""The queue of a batch system: jobs, the client to ask, and the job of a driver."""

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, cast

from scalelab.cluster.survey.inventory import Inventory
from scalelab.errors import BusyError, ClusterError
from scalelab.inputs.plain_files import make_folder
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem
from scalelab.kinds.registry import imported
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.waits import JobWait
from scalelab.records.attempt import storing
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, DriverRecord
from scalelab.records.control.lease import LOG
from scalelab.site.job_script import driver_job_script
from scalelab.site.profile import Site

CALL_TIMEOUT_S = 60.0
# Looks in a row in which a queue must not name a job to have forgotten it.
MISSING_LOOKS = 2
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
    """One job as the batch system shows it."""

    state: JobState
    reason: str = ""
    can_never_run: bool = False
    estimated_start: str | None = None
    remaining_s: float | None = None  # until its time limit; None: unknown, or none
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
    """The jobs that a batch system was asked about, and what it knows of them by name.

    Where it did not answer, the error says why.
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

    async def close(self) -> None:
        """Cancel it."""


class BatchClient(Protocol):
    """Client of a batch system, whose class a row of ``BATCH_SYSTEMS`` names.

    ``survey`` and what stands below it are static: no instance is needed for them.
    """

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job that is to be submitted, or has this id already."""

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what is known of jobs, both by name."""

    @staticmethod
    def survey() -> Inventory:
        """Return the queues, nodes and accounts that there are."""

    @staticmethod
    def accounted(job_ids: Sequence[str]) -> dict[str, AccountedJob]:
        """Return what the batch system accounts for jobs, by id; it knows not all."""

    @staticmethod
    def queue_waits(queue: str | None) -> list[JobWait]:
        """Return what the last weeks' jobs of a queue waited, those of all users."""

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Tell whether jobs of a queue may submit others; None: not known."""


def batch_client(scheduler: str) -> BatchClient:
    """Return the client of a batch system; call it in the main thread."""
    return client_class(BATCH_SYSTEMS[scheduler])()


def client_class(system: BatchSystem) -> type[BatchClient]:
    """Return the class of the client of a batch system."""
    return cast(type[BatchClient], imported(system.client))


def survey(system: BatchSystem | None = None) -> Inventory:
    """Ask a batch system for the queues, nodes and accounts that there are.

    By default, the one whose programs can be run here.
    """
    by_hand = ", or write the profile by hand: docs/clusters.md"
    return client_class(system or system_here(by_hand)).survey()


def system_here(instead: str = "", job_ids: Sequence[str] = ()) -> BatchSystem:
    """Return the batch system whose programs can be run here, and that has such ids.

    Where there is none, the error says what to do ``instead`` of logging in.
    """
    for system in BATCH_SYSTEMS:
        is_here = shutil.which(system.survey_program)
        if is_here and all(map(system.job_id_form.fullmatch, job_ids)):
            return system
    *others, last = (system.survey_program for system in BATCH_SYSTEMS)
    raise ClusterError(
        f"Neither {', '.join(others)} nor {last} can be run here. Log in to the "
        f"cluster{instead}."
    )


async def submitted(job: BatchJob) -> str:
    """Submit a job and return its id."""
    try:
        await asyncio.wait_for(job.start(), CALL_TIMEOUT_S)
    except TimeoutError as error:
        raise _no_answer() from error
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(" ".join(str(error).split())) from error
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
    if not (found := _CLOCK.fullmatch(clock.strip())):
        return None
    day, hour, minute, second = (int(found[name] or 0) for name in "dhms")
    return float(((day * 24 + hour) * 60 + minute) * 60 + second)


def submit_driver(
    site: Site, run: Path, arguments: Sequence[str], *, after: str | None = None
) -> DriverRecord:
    """Submit a job that runs ``scalelab``, and record it in the run's directory."""
    earlier = DriverRecord.read(run)
    number = 1 if earlier is None else earlier.number + 1
    name = f"{run.name}-driver-{number}"

    with storing(run / CLUSTER_DIRECTORY):
        make_folder(run / CLUSTER_DIRECTORY, below=run)

    script = driver_job_script(
        site,
        arguments,
        job_name=name,
        directory=Path.cwd(),
        log=run / LOG,
        job_log=job_log(run, name),
        after=after,
    )

    record = submit_script(site.scheduler, name, script, number)
    record.write(run)
    return record


def submit_script(
    scheduler: str, name: str, script: str, number: int = 1
) -> DriverRecord:
    """Submit a job, and return what a run may record of it."""
    try:
        job_id = asyncio.run(submitted(batch_client(scheduler).job(name, script)))
    except BusyError as error:
        raise BusyError(
            f"{scheduler} takes no job now: {error}. Try again later."
        ) from error
    except ClusterError as error:
        raise ClusterError(
            f"{scheduler} refused the job {name}: {error}. Correct the site."
        ) from error
    return DriverRecord(scheduler=scheduler, name=name, job_id=job_id, number=number)


def job_log(run: Path, name: str) -> Path:
    """Return the path of the job's log: output from before the driver's own log."""
    return run / CLUSTER_DIRECTORY / f"{name}.log"


def look_at(record: DriverRecord) -> JobView | None:
    """Return the state of a driver's job; None: unknown to the batch system."""
    client = batch_client(record.scheduler)
    return asyncio.run(client.look({record.name: record.job_id})).get(record.name)


def waiting_driver(run: Path) -> tuple[DriverRecord, JobView] | None:
    """Return the job that waits in the queue to run a run's driver."""
    record = DriverRecord.read(run)
    if record is None or record.has_left_queue:
        return None
    view = look_at(record)
    return (record, view) if view and view.state is JobState.PENDING else None


def cancel(record: DriverRecord) -> None:
    """Cancel a driver's job."""
    job = batch_client(record.scheduler).job(record.name, job_id=record.job_id)
    try:
        asyncio.run(cancelled(job))
    except ClusterError as error:
        raise ClusterError(
            f"job {record.job_id} could not be cancelled: {error}."
        ) from error

"""The batch job of a detached driver: submitted, looked at, cancelled."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from scalelab.cluster.batch.queue import (
    JobState,
    JobView,
    batch_client,
    cancelled,
    submitted,
)
from scalelab.errors import BusyError, ClusterError
from scalelab.records.attempt_io import storing
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, DriverRecord
from scalelab.records.control.lease import LOG
from scalelab.site.job_script import driver_job_script
from scalelab.site.profile import Site


def submit_driver(
    site: Site, run: Path, arguments: Sequence[str], *, after: str | None = None
) -> DriverRecord:
    """Submit a job that runs ``scalelab``, and record it in the run's directory."""
    earlier = DriverRecord.read(run)
    number = 1 if earlier is None else earlier.number + 1
    name = f"{run.name}-driver-{number}"
    with storing(run / CLUSTER_DIRECTORY):
        (run / CLUSTER_DIRECTORY).mkdir(exist_ok=True)
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

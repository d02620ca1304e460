"""Detached drivers: a background process or a batch job that runs the sweep."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.cluster.batch.queue import (
    MISSING_LOOKS,
    JobState,
    JobView,
    cancel,
    job_log,
    look_at,
    submit_driver,
    waiting_driver,
)
from scalelab.errors import ClusterError, LeaseError, ScaleLabError
from scalelab.inputs.plain_files import last_log_lines, open_to_append
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, system_of_job
from scalelab.plan.tracked import source_of
from scalelab.records.attempt import storing
from scalelab.records.control.job_list import DriverRecord
from scalelab.records.control.lease import LEASE, LOG, Lease, read_holder
from scalelab.running.sweep import RunningSweep, Sweep
from scalelab.site.batch_site import driver_job_of

QUEUED_S = 5.0  # seconds that --detach watches a job that waits in the queue
_LOOK_AGAIN_S, _ASK_QUEUE_S = 0.1, 1.0
# Prefixes of the variables by which MPI tells programs that they are part of a job.
_OF_MPI = ("PMI", "OMPI_")
_TAIL = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Detached:
    """The state of a sweep that was started apart from this process."""

    text: str
    exit_code: int = 0  # of the sweep, where it has ended already


def detach(asked: Sweep, arguments: Sequence[str]) -> Detached:
    """Start a sweep apart from this process and wait until it has begun."""
    run = asked.store().directory
    if driver_job_of(asked.site) is not None:
        return _detach_job(asked, run, arguments)
    return _detach_process(run, arguments)


def refuse_second_driver(run: Path) -> None:
    """Refuse to run a sweep that has a driver, or whose driver waits in the queue."""
    if not (run / "run.json").exists():
        return
    with Lease(run / LEASE):
        pass  # it says who else holds it

    if found := waiting_driver(run):
        raise LeaseError(
            f"{_described(*found)} and will run the sweep of {run}. Wait for it, or "
            f"cancel it with `scalelab stop {run}`."
        )


def _described(record: DriverRecord, view: JobView) -> str:
    parts = [
        f"job {record.job_id} ({record.name}) waits in the queue",
        view.reason,
        view.estimated_start and f"start expected {view.estimated_start}",
    ]
    return ", ".join(filter(None, parts))


def waiting_driver_text(run: Path) -> str | None:
    """Say which job waits to run a run's driver; None: there is none."""
    try:
        found = waiting_driver(run)
    except ClusterError as error:
        return f"unknown: {error}"
    return None if found is None else _described(*found)


def _log_of(run: Path) -> int:
    """Return the descriptor of the log of a run's drivers, to append to."""
    with storing(run / LOG):
        return open_to_append(run / LOG)


def _detach_process(run: Path, arguments: Sequence[str]) -> Detached:
    log, output = run / LOG, _log_of(run)
    start = os.fstat(output).st_size
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "scalelab", *arguments],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
    )
    os.close(output)
    try:
        while not (
            (holder := read_holder(run / LEASE))
            and holder.pid == pid
            and holder.has_begun
        ):
            time.sleep(_LOOK_AGAIN_S)
            ended, word = os.waitpid(pid, os.WNOHANG)
            if ended:
                lines = last_log_lines(log, _TAIL, since=start)
                return Detached(
                    text=lines, exit_code=abs(os.waitstatus_to_exitcode(word))
                )
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise

    return Detached(
        text=f"Begun: process {pid} on host {socket.gethostname()} runs the sweep of "
        f"{run}, whatever becomes of this shell. {_what_next(run)}"
    )


def _detach_job(asked: Sweep, run: Path, arguments: Sequence[str]) -> Detached:
    log, output = run / LOG, _log_of(run)
    start = os.fstat(output).st_size
    os.close(output)
    record = submit_driver(asked.site, run, [*arguments, "--as-driver-job"])
    job = f"job {record.job_id} ({record.name})"
    deadline_s = time.monotonic() + QUEUED_S

    num_missing = 0
    while True:
        time.sleep(_ASK_QUEUE_S)
        holder = read_holder(run / LEASE)
        if holder is not None and holder.has_begun:
            return Detached(
                text=f"Begun: {job} runs the sweep of {run} on host {holder.host}. "
                f"{_what_next(run)}"
            )

        view = look_at(record)
        num_missing = num_missing + 1 if view is None else 0
        if view is None and num_missing < MISSING_LOOKS:
            continue

        if view is None or view.state is JobState.ENDED:
            record.leave_queue(run)
            lines = last_log_lines(log, _TAIL, since=start) or last_log_lines(
                job_log(run, record.name), _TAIL
            )
            store = asked.store()

            finished = store.finished(store.rows())
            if source_of(asked.experiment, asked.site, finished).is_exhausted():
                return Detached(text=lines)

            how = "" if view is None else f" ({view.reason})"
            raise ClusterError(
                f"{job} ended{how} before the sweep had begun. It said: {lines}"
            )

        if view.can_never_run:
            cancel(record)
            record.leave_queue(run)
            raise ClusterError(
                f"{job} can never run: {view.reason}. Correct driver_job in the site."
            )

        if view.state is JobState.PENDING and time.monotonic() > deadline_s:
            return Detached(
                text=f"Queued: {_described(record, view)}, and then runs the sweep of "
                f"{run}. {_what_next(run)}"
            )


def _what_next(run: Path) -> str:
    return f"Log: {run / LOG}. See: scalelab status {run}, scalelab stop {run}"


class DriverJobLife:
    """The life of the batch job this driver runs in: succeeded before its time is up.

    Well before, the next job is submitted, to start when this one has ended; the
    driver then starts nothing more, and shortly before ends what still runs.
    """

    def __init__(
        self,
        asked: Sweep,
        arguments: Sequence[str],
        *,
        say: Callable[[str], None],
        started_s: float,
    ) -> None:
        job = driver_job_of(asked.site)
        assert job is not None
        self._asked = asked
        self._arguments = [*arguments, "--as-driver-job"]
        self._say = say
        self._job_id = leave_job(os.environ)

        record = DriverRecord.read(asked.directory)
        if record is not None and record.job_id == self._job_id:
            record.leave_queue(asked.directory)

        end_s = started_s + job.walltime
        self._renew_s = end_s - min(0.25 * job.walltime, 3600.0)
        self._kill_s = end_s - min(0.1 * job.walltime, 300.0)
        self._end = threading.Event()

    def control(self, running: RunningSweep) -> None:
        """Look after a sweep that has begun, in a thread."""
        threading.Thread(target=self._live, args=(running,), daemon=True).start()

    def _live(self, running: RunningSweep) -> None:
        time.sleep(max(0.0, self._renew_s - time.monotonic()))
        while not self._renew(running):
            time.sleep(max(1.0, (self._kill_s - self._renew_s) / 10))
        running.driver.drain()
        time.sleep(max(0.0, self._kill_s - time.monotonic()))
        running.driver.kill()

    def _renew(self, running: RunningSweep) -> bool:
        # Whether there is a next job, or shall be none.
        if running.stop_requests.came:
            return True

        try:
            record = submit_driver(
                self._asked.site,
                self._asked.directory,
                self._arguments,
                after=self._job_id,
            )
        except ScaleLabError as error:
            self._say(f"This job's time is nearly up, and it has no successor: {error}")
            return time.monotonic() > self._kill_s

        self._say(
            f"This job's time is nearly up: job {record.job_id} ({record.name}) goes "
            "on after it."
        )
        return True


def leave_job(environment: os._Environ[str] | dict[str, str]) -> str | None:
    """Return the id of the surrounding job and drop it from the environment.

    >>> inherited = {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "mask", "HOME": "/home/me"}
    >>> leave_job(inherited), inherited
    ('7', {'HOME': '/home/me'})
    """
    system = system_of_job(environment)
    job_id = environment[system.job_variable] if system else None
    for name in list(environment):
        is_of_job = any(system.is_of_job(name) for system in BATCH_SYSTEMS)
        if is_of_job or name.startswith(_OF_MPI):
            environment.pop(name, None)
    return job_id

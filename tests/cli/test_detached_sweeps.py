import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from measured_runs import EMULATED, measured_run
from waiting import wait_until

from scalelab.cluster.batch.queue import JobState, JobView
from scalelab.errors import ClusterError
from scalelab.records.control.job_list import DriverRecord
from scalelab.running import detached as detaching
from scalelab.running.detached import DriverJobLife
from scalelab.site.batch_site import DriverJob
from scalelab.site.choice import site_of
from scalelab.site.profile import Site

LONG = EMULATED.replace("steps: 5,", "steps: 100,")


@pytest.fixture
def ended() -> Iterator[Callable[[str], psutil.Process]]:
    """Return a function that finds the process a text names; it ends with the test."""
    found: list[psutil.Process] = []

    def find(text: str) -> psutil.Process:
        pid = re.search(r"process (\d+) on host", text)
        assert pid is not None, text
        found.append(psutil.Process(int(pid[1])))
        return found[-1]

    yield find
    for process in found:
        if process.is_running():
            process.kill()


@pytest.mark.slow
def test_a_detached_sweep_is_found_followed_and_stopped(
    scalelab: Any, here: Path, ended: Callable[[str], psutil.Process]
) -> None:
    Path("experiment.yaml").write_text(LONG)
    begun = scalelab("sweep", "--detach", "experiment.yaml")
    assert (begun.code, begun.err) == (0, "")
    driver = ended(begun.out)
    assert begun.out.startswith(f"Begun: process {driver.pid} on host ")
    log = here / "runs" / "small" / "driver.log"
    assert f"Log: {log}. See: scalelab status {here}/runs/small" in begun.out
    assert log.read_text().startswith("Running 8 trials into ")
    status = scalelab("status", "runs/small").out
    assert f"Driver: process {driver.pid} on host" in status
    assert "  log: runs/small/driver.log\n" in status
    for options in ([], ["--detach"]):
        again = scalelab("sweep", *options, "experiment.yaml")
        again.assert_refused()
        assert f"is being run by process {driver.pid}" in again.err
        assert f"Follow it with `scalelab status {here}/runs/small` and `tail" in (
            again.err
        )
    stopped = scalelab("stop", "--now", "runs/small")
    assert stopped.out.startswith(f"Stopped: process {driver.pid}"), stopped
    wait_until(
        lambda: not driver.is_running() or driver.status() == "zombie",
        "the driver has ended",
    )
    assert "The sweep ended early" in log.read_text()


@pytest.mark.repetition
@pytest.mark.slow
def test_a_detached_sweep_that_cannot_begin_says_why(scalelab: Any, here: Path) -> None:
    held = EMULATED.replace("site: {", "site: {scheduler: allocation, ")
    Path("experiment.yaml").write_text(held)
    said = scalelab("sweep", "--detach", "--run", "held", "experiment.yaml")
    assert (said.code, said.out) == (3, "")
    assert (
        "Error: scheduler=allocation, but this process runs in no batch job:"
        in said.err
    )
    run = measured_run(here / "runs" / "small").directory
    Path("experiment.yaml").write_text(EMULATED)
    done = scalelab("sweep", "--detach", "experiment.yaml")
    assert done.code == 0
    assert f"All 8 trials of {run} are done." in done.out
    assert "Use 2 " in done.out


class Queue:
    """Stands where the batch system does."""

    def __init__(self) -> None:
        self.submitted: list[tuple[list[str], str | None]] = []
        self.cancelled: list[str] = []
        self.view: JobView | None = JobView(
            state=JobState.PENDING, reason="Priority", estimated_start="tomorrow"
        )
        self.refusal = ""

    def submit(
        self, site: Site, run: Path, arguments: list[str], *, after: str | None = None
    ) -> DriverRecord:
        if self.refusal:
            raise ClusterError(self.refusal)
        self.submitted.append((list(arguments), after))
        record = DriverRecord(
            scheduler="slurm", name="small-driver-1", job_id="17", number=1
        )
        (run / "cluster").mkdir(exist_ok=True)
        record.write(run)
        return record

    def waiting(self, run: Path) -> tuple[DriverRecord, JobView] | None:
        record = DriverRecord.read(run)
        is_pending = self.view is not None and self.view.state is JobState.PENDING
        return (record, self.view) if record and self.view and is_pending else None


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    from scalelab.cluster.batch import queue as batch_queue

    queue = Queue()
    for module in (batch_queue, detaching):
        monkeypatch.setattr(module, "waiting_driver", queue.waiting)
        monkeypatch.setattr(
            module, "cancel", lambda record: queue.cancelled.append(record.job_id)
        )
    monkeypatch.setattr(detaching, "submit_driver", queue.submit)
    monkeypatch.setattr(detaching, "look_at", lambda record: queue.view)
    monkeypatch.setattr(detaching, "QUEUED_S", 0.0)
    monkeypatch.setattr(detaching, "_ASK_QUEUE_S", 0.01)
    Path("experiment.yaml").write_text(EMULATED.replace("site: ", "# site: "))
    Path("site.yaml").write_text(
        "{scheduler: slurm, device_type: cpu, gpus_per_node: 2,"
        " driver_job: {walltime: 1h}}"
    )
    return queue


def has_left_queue(run: Path) -> bool:
    record = DriverRecord.read(run)
    assert record is not None
    return record.has_left_queue


SWEEP = ("sweep", "experiment.yaml", "--site", "./site.yaml")


@pytest.fixture
def run(here: Path) -> Path:
    return here / "runs" / "small"


def test_a_driver_that_waits_in_the_queue_is_found_and_cancelled(
    scalelab: Callable[..., Any], run: Path, queue: Queue
) -> None:
    queued = scalelab(*SWEEP, "--detach", "--retry-failed")
    assert queued.code == 0, queued
    waits = "job 17 (small-driver-1) waits in the queue, Priority, start expected"
    assert queued.out.startswith(f"Queued: {waits} tomorrow, and then runs the sweep")
    ((arguments, after),) = queue.submitted
    assert arguments == [
        *("sweep", "experiment.yaml", "--yes", "--site", "./site.yaml"),
        *("--run", str(run), "--retry-failed", "--as-driver-job"),
    ]
    assert after is None
    assert f"Driver: {waits}" in scalelab("status", run).out
    for options in ([], ["--detach"]):
        again = scalelab(*SWEEP, *options)
        again.assert_refused()
        assert f"{waits} tomorrow and will run the sweep of {run}." in again.err
    assert scalelab("stop", run).out.startswith("Cancelled: job 17 (small-driver-1),")
    assert queue.cancelled == ["17"]
    assert has_left_queue(run)
    queue.view = None
    assert scalelab("stop", run).out.startswith("No driver runs ")


def test_a_driver_that_can_never_run_is_cancelled(
    scalelab: Callable[..., Any], run: Path, queue: Queue
) -> None:
    queue.view = JobView(
        state=JobState.PENDING, reason="PartitionTimeLimit", can_never_run=True
    )
    refused = scalelab(*SWEEP, "--detach", "--quiet")
    refused.assert_refused(3)
    assert "can never run: PartitionTimeLimit. Correct driver_job" in refused.err
    assert queue.cancelled == ["17"]
    assert has_left_queue(run)


def test_a_driver_that_ended_early_says_what_it_said(
    scalelab: Callable[..., Any], run: Path, queue: Queue
) -> None:
    queue.view = JobView(state=JobState.ENDED, reason="FAILED (NonZeroExitCode)")
    refused = scalelab(*SWEEP, "--detach", "--quiet")
    refused.assert_refused(3)
    assert "(small-driver-1) ended (FAILED (NonZeroExitCode)) before" in refused.err
    assert has_left_queue(run)


def test_a_driver_whose_sweep_was_done_is_no_failure(
    scalelab: Callable[..., Any], here: Path, queue: Queue
) -> None:
    queue.view = None
    measured_run(here / "runs" / "small")
    ended = scalelab(*SWEEP, "--detach")
    assert (ended.code, ended.err) == (0, "")


def test_a_refused_driver_is_an_error_of_the_cluster(
    scalelab: Callable[..., Any], run: Path, queue: Queue
) -> None:
    queue.refusal = "no such partition"
    refused = scalelab(*SWEEP, "--detach", "--quiet")
    refused.assert_refused(3)
    assert "no such partition" in refused.err


@pytest.mark.parametrize("options", [[], ["--detach"]])
def test_a_run_where_the_batch_system_can_write_no_log_is_refused_and_not_begun(
    scalelab: Callable[..., Any], here: Path, queue: Queue, options: list[str]
) -> None:
    site = Path("site.yaml")
    site.write_text(site.read_text().replace("slurm", "pbs"))
    refused = scalelab(*SWEEP, *options, "--run", here / "my runs" / "vit")
    refused.assert_refused()
    assert "pbs does not take in the path of a log. Choose another" in refused.err
    assert not (here / "my runs").exists()


class Running:
    """Stands where a running sweep does."""

    def __init__(self) -> None:
        self.driver = self.stop_requests = self
        self.came = False
        self.done: list[str] = []

    def drain(self) -> None:
        self.done.append("drain")

    def kill(self) -> None:
        self.done.append("kill")


class Asked:
    def __init__(self, directory: Path, walltime_s: float) -> None:
        job = DriverJob.model_construct(walltime=walltime_s)
        nodes = {"scheduler": "slurm", "device_type": "cpu", "gpus_per_node": 1}
        self.site = site_of(nodes).model_copy(update={"driver_job": job})
        self.directory = directory


def live(run: Path, walltime_s: float, running: Running) -> list[str]:
    said: list[str] = []
    life = DriverJobLife(
        Asked(run, walltime_s),  # type: ignore[arg-type]
        ["sweep", "x"],
        say=said.append,
        started_s=time.monotonic(),
    )
    life.control(running)  # type: ignore[arg-type]
    wait_until(lambda: running.done == ["drain", "kill"], "the driver is killed")
    return said


def test_a_job_is_succeeded_before_its_time_is_up(
    here: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    said = live(here, 0.5, Running())
    assert queue.submitted == [(["sweep", "x", "--as-driver-job"], "5")]
    assert said == [
        "This job's time is nearly up: job 17 (small-driver-1) goes on after it."
    ]


@pytest.mark.parametrize(
    ("variable", "job_id"), [("SLURM_JOB_ID", "17"), ("PBS_JOBID", "1")]
)
def test_a_driver_s_job_says_that_it_waits_no_more_and_not_that_another_does_not(
    here: Path,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    job_id: str,
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, job_id)
    queue.submit(site_of({"device_type": "cpu"}), here, [])
    running = Running()
    running.came = True
    live(here, 0.5, running)
    assert has_left_queue(here) == (job_id == "17")


def test_a_job_that_was_told_to_stop_has_no_successor(here: Path, queue: Queue) -> None:
    running = Running()
    running.came = True
    assert live(here, 0.5, running) == []
    assert queue.submitted == []


@pytest.mark.slow
def test_a_job_without_a_successor_works_to_its_end(here: Path, queue: Queue) -> None:
    queue.refusal = "too many jobs"
    said = live(here, 2.0, Running())
    assert "it has no successor: too many jobs" in said[0]


def test_a_debugger_needs_a_shell(scalelab: Callable[..., Any], here: Path) -> None:
    refused = scalelab("sweep", "x.yaml", "--in-process", "--detach")
    refused.assert_refused()
    assert "--detach apart from it." in refused.err

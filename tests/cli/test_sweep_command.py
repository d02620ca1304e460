import os
import signal
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
from conducting import Conductor
from measured_runs import EMULATED, failed, measured_run
from waiting import wait_until

from scalelab.cli.sweep_command import _Interrupts
from scalelab.kinds.trainers import TRAINERS
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobLine, JobList
from scalelab.records.control.stop_request import StopRequests, request_stop
from scalelab.records.store import RunStore
from scalelab.running.sweep import RunningSweep


@pytest.fixture(autouse=True)
def experiment(here: Path) -> Path:
    path = here / "experiment.yaml"
    path.write_text(EMULATED)
    return path


@pytest.mark.slow
def test_a_run_that_is_done_is_answered_at_once(
    scalelab: Callable[..., Any], here: Path
) -> None:
    measured_run(here / "runs" / "small")
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 0
    assert ended.err == f"All 8 trials of {here}/runs/small are done.\n"
    assert ended.out.startswith("Use 2 A100") or ended.out.startswith("Use 2 emulated")
    assert ended.out.endswith(f"Report: {here}/runs/small/report.html\n")
    quiet = scalelab("sweep", "--quiet", "experiment.yaml")
    assert quiet.err == ""
    assert quiet.out == ended.out.rpartition("Report: ")[0]


@pytest.mark.slow
def test_jobs_that_were_not_cancelled_are_named_and_the_sweep_does_not_end_well(
    scalelab: Callable[..., Any], here: Path
) -> None:
    run = measured_run(here / "runs" / "small").directory
    line = JobLine(
        name="small-1",
        job_id="17",
        num_nodes=2,
        state="not cancelled",
        reason="Unable to contact slurm controller",
    )
    (run / CLUSTER_DIRECTORY).mkdir(exist_ok=True)
    JobList(jobs=(line,), last_number=1).write(run / CLUSTER_DIRECTORY)
    ended = scalelab("sweep", "--quiet", "experiment.yaml")
    assert ended.code == 3
    assert ended.out.startswith("Use 2 "), "what was measured is answered"
    assert ended.err.startswith("Error: 1 job may hold nodes still")
    assert str(line) in ended.err


@pytest.mark.slow
def test_trials_that_failed_before_are_not_forgotten(
    scalelab: Callable[..., Any], here: Path
) -> None:
    measured_run(here / "runs" / "small", ending=failed)
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 1
    assert (
        "All 8 trials failed. Fix the script, then sweep --retry-failed.\n" in ended.err
    )
    assert "No recommendation: " in ended.err
    assert ended.out == f"Report: {here}/runs/small/report.html\n"


@pytest.mark.slow
def test_steps_that_cannot_be_compacted_cost_no_answer(
    scalelab: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(store: RunStore) -> list[str]:
        raise ImportError("libarrow.so: failed to map segment from shared object")

    monkeypatch.setattr(RunStore, "compact", without_memory)
    Path("experiment.yaml").write_text(EMULATED)
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 0
    assert "Steps were not compacted" in ended.err
    assert ended.out.startswith("Use ")


def test_failures_are_listed(
    scalelab: Callable[..., Any],
    here: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conductor, "num_failed", 7)
    monkeypatch.setattr(conductor, "input_errors", (None,))
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 1
    lines = ended.err.splitlines()
    assert lines[:2] == [
        f"Running 8 trials into {here}/runs/small.",
        "Dask dashboard: http://127.0.0.1:1/status",
    ]
    assert lines[2].endswith(": failed. It raised.")
    assert lines[3] == "0/8 done, 0 running, 1 failed, 0.0010 emulated GPU-h"
    assert sum(line.startswith("failed: ") for line in lines) == 5
    assert lines[4].endswith("No. Log: rank-0.log")
    assert lines[9:11] == [
        "... and 2 trials more.",
        "All 7 trials failed: No. Fix the script, then sweep --retry-failed.",
    ]


def test_a_spent_budget_is_no_failure(
    scalelab: Callable[..., Any],
    here: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conductor, "stopped", "the budget is spent")
    ended = scalelab("sweep", "--sweep-budget", "30gpu-min", "experiment.yaml")
    assert ended.code == 0
    assert conductor.made[0].options["account"].budget.amount == 1800
    assert "The sweep ended early: the budget is spent.\n" in ended.err
    assert "Not run: 8 trials. The same command goes on with them.\n" in ended.err


@pytest.mark.parametrize(
    ("numbers", "drained", "killed"),
    [
        ([signal.SIGINT], 1, 0),
        ([signal.SIGINT, signal.SIGINT], 1, 1),
        ([signal.SIGTERM], 0, 1),
        ([signal.SIGINT, signal.SIGTERM], 1, 1),
    ],
)
def test_signals_reach_the_driver(
    scalelab: Callable[..., Any],
    here: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
    numbers: list[Signals],
    drained: int,
    killed: int,
) -> None:
    def meanwhile() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(conductor, "meanwhile", staticmethod(meanwhile))
    monkeypatch.setattr(conductor, "stopped", "the sweep was stopped")
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 130
    assert ended.out == ""
    (driver,) = conductor.made
    assert (driver.num_drained, driver.num_killed) == (drained, killed)
    assert "goes on with them" in ended.err
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "drained"), [(False, 1), (True, 0)])
def test_a_request_to_stop_reaches_the_driver(
    scalelab: Callable[..., Any],
    here: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
    drained: int,
) -> None:
    def meanwhile() -> None:
        request = request_stop(here / "runs" / "small", at_once=at_once)
        (driver,) = conductor.made
        wait_until(lambda: driver.num_drained + driver.num_killed, "it is heard")
        assert not request.exists()

    monkeypatch.setattr(conductor, "meanwhile", staticmethod(meanwhile))
    monkeypatch.setattr(conductor, "stopped", "the sweep was stopped")
    ended = scalelab("sweep", "experiment.yaml")
    assert (ended.code, ended.out) == (130, "")
    assert "The sweep ended early: the sweep was stopped.\n" in ended.err
    (driver,) = conductor.made
    assert (driver.num_drained, driver.num_killed) == (drained, 1 - drained)


def test_a_third_signal_ends_everything(
    scalelab: Callable[..., Any],
    here: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def meanwhile() -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(conductor, "meanwhile", staticmethod(meanwhile))
    ended = scalelab("sweep", "experiment.yaml")
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "Interrupted.")


def running(conductor: type[Conductor], directory: Path) -> RunningSweep:
    driver = conductor(None, None, None, None, on_event=None)
    requests = StopRequests(directory)
    return RunningSweep(
        driver=driver, source=None, dashboard_link="", stop_requests=requests
    )


def test_a_signal_before_the_nodes_are_up_runs_nothing(
    here: Path, conductor: type[Conductor]
) -> None:
    said: list[str] = []
    interrupts = _Interrupts()
    interrupts.say = said.append
    interrupts.__enter__()
    os.kill(os.getpid(), signal.SIGINT)
    assert said == ["Interrupted: the sweep ends as soon as its nodes have started."]
    with pytest.raises(KeyboardInterrupt):
        interrupts.control(running(conductor, here))
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.__exit__(None, None, None)  # as where nothing was left to run


@pytest.mark.slow
def test_an_auto_batch_has_no_count_yet(
    scalelab: Callable[..., Any],
    here: Path,
    experiment: Path,
    conductor: type[Conductor],
) -> None:
    experiment.write_text(EMULATED.replace("[4, 8]", "auto"))
    err = scalelab("sweep", "experiment.yaml").err
    assert err.startswith(f"Into {here}/runs/small: first the largest local batch.\n")


@pytest.mark.slow
def test_what_goes_on_is_counted(
    scalelab: Callable[..., Any],
    here: Path,
    experiment: Path,
    conductor: type[Conductor],
) -> None:
    measured_run(here / "runs" / "small")
    experiment.write_text(EMULATED.replace("[4, 8]", "[4, 8, 16]"))
    err = scalelab("sweep", "experiment.yaml").err
    assert err.startswith(
        f"Continuing {here}/runs/small: 8 trials done, 4 trials to run.\n"
    )


@pytest.mark.slow
def test_accepted_changes_are_repeated(
    scalelab: Callable[..., Any],
    here: Path,
    experiment: Path,
    conductor: type[Conductor],
) -> None:
    measured_run(here / "runs" / "small")
    experiment.write_text(EMULATED.replace("steps: 5", "steps: 6"))
    assert scalelab("sweep", "experiment.yaml").code == 2
    err = scalelab("sweep", "--accept-changes", "experiment.yaml").err
    assert err.splitlines()[:2] == [
        "Changed: measure.throughput.steps: 5 -> 6.",
        f"Running 8 trials into {here}/runs/small.",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("reply", "code"), [(True, 0), (False, 130)])
def test_large_sweeps_ask(
    scalelab: Callable[..., Any],
    here: Path,
    experiment: Path,
    conductor: type[Conductor],
    monkeypatch: pytest.MonkeyPatch,
    reply: bool,
    code: int,
) -> None:
    experiment.write_text(EMULATED + "confirm_above: {trials: 7}\n")
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        return reply

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == code
    assert questions == ["This sweep runs 8 trials; confirm_above.trials is 7. Go on?"]
    assert len(conductor.made) == reply
    assert ("Nothing was run." in ended.err) == (not reply)
    assert scalelab("sweep", "--yes", "experiment.yaml").code == 0
    assert len(questions) == 1


ON_SLURM = EMULATED.replace(
    "{device_type: cpu", "{name: hpc, scheduler: slurm, device_type: cpu"
)
LARGE_SHARE = ON_SLURM.replace("100000", "1000")


@pytest.mark.parametrize(
    ("text", "options", "asks"),
    [
        (ON_SLURM, (), False),  # 0.43% of the job
        (LARGE_SHARE, (), True),
        (LARGE_SHARE, ("--yes",), False),
        (LARGE_SHARE, ("--sweep-budget", "10gpu-h"), False),
        (LARGE_SHARE + "confirm_above: {share_of_job: 0.5}", (), False),
        (EMULATED.replace("100000", "1000"), (), False),
    ],
)
def test_a_sweep_of_a_large_share_asks_before_a_job_is_submitted(
    scalelab: Callable[..., Any],
    here: Path,
    experiment: Path,
    conductor: type[Conductor],
    text: str,
    options: tuple[str, ...],
    asks: bool,
) -> None:
    experiment.write_text(text)
    ended = scalelab("sweep", *options, "experiment.yaml")
    assert (ended.code, len(conductor.made)) == ((2, 0) if asks else (0, 1))
    assert ("This sweep trains 43.2% of the job's samples" in ended.err) == asks
    assert (here / "runs").exists() == (not asks)

    lines = ended.err.splitlines()
    costs = [line for line in lines if line.startswith(("Device time", "The run"))]
    begun = [line for line in lines if line.startswith(("Running", "Error"))]
    assert len(costs) == ("slurm" in text)
    assert lines[: len(costs)] == costs
    assert len(begun) == 1


def test_one_trial_runs_in_this_process(
    scalelab: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    ended = scalelab("sweep", "--in-process", "experiment.yaml")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("completed: ")
    assert any(line.startswith("  step_time_s ") for line in lines)
    assert [path.name for path in here.iterdir()] == ["experiment.yaml"]


def test_data_land_where_they_are_looked_for(
    scalelab: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []

    def obtain(name: str, directory: Path) -> Path:
        asked.append((name, directory))
        return directory.absolute()

    monkeypatch.setattr(TRAINERS["torch"], "obtain", obtain)
    ended = scalelab("data", "cifar10")
    assert (ended.code, ended.out) == (0, f"cifar10 is in {here}/data/cifar10\n")
    assert scalelab("data", "cifar10", "--directory", "x").out.endswith("/x\n")
    assert asked == [("cifar10", Path("data/cifar10")), ("cifar10", Path("x"))]
    refused = scalelab("data", "mnist")
    assert refused.code == 2
    assert "'mnist' is no data set that can be obtained. Choose from: cifar10." in (
        " ".join(refused.err.split())
    )

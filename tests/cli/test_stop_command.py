import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from measured_runs import EMULATED, measured_run
from waiting import wait_until

from scalelab.records.control.lease import read_holder
from scalelab.records.control.stop_request import StopRequests
from scalelab.records.store import RunStore
from scalelab.running import stop as stopping

LONG = EMULATED.replace("steps: 5,", "steps: 100,")


def test_nothing_to_stop(scalelab: Callable[..., Any], tmp_path: Path) -> None:
    run = measured_run(tmp_path / "run").directory
    ended = scalelab("stop", run)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        f"No driver runs {run}; there is nothing to stop. A process that writes its "
        "report after the last trial ends by itself.\n"
    )
    assert not (run / "driver.stop").exists()


def test_what_is_no_run_is_refused(
    scalelab: Callable[..., Any], tmp_path: Path
) -> None:
    scalelab("stop", tmp_path / "absent").assert_refused()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEARD_WITHIN_S", "HEARD_FROM_AFAR_WITHIN_S", "ENDED_WITHIN_S"):
        monkeypatch.setattr(stopping, name, 0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_driver_that_does_not_answer_is_named(
    scalelab: Callable[..., Any], tmp_path: Path
) -> None:
    store = measured_run(tmp_path / "run")
    with store.lease():
        ended = scalelab("stop", store.directory)
        ended.assert_refused(3)
        assert f"is held by process {os.getpid()} on host" in ended.err
        assert "The request stands: it stops as soon as it goes on." in ended.err
        assert f"`kill -9 {os.getpid()}` ends it;" in ended.err
        assert (store.directory / "driver.stop").exists()
        lease = store.directory / "driver.lease"
        values = json.loads(lease.read_bytes()) | {"host": "far", "boot": "other"}
        lease.write_bytes(json.dumps(values).encode().ljust(512))
        ended = scalelab("stop", store.directory, "--now")
        ended.assert_refused(3)
        assert "If host far is down, sweep again: after half a minute" in ended.err


@pytest.mark.usefixtures("impatient")
def test_a_driver_that_takes_its_time_is_named(
    scalelab: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = measured_run(tmp_path / "run")
    request_stop = stopping.request_stop

    def heard(run: Path, *, at_once: bool) -> Path:
        path = request_stop(run, at_once=at_once)
        path.unlink()
        return path

    monkeypatch.setattr(stopping, "request_stop", heard)
    with store.lease():
        ended = scalelab("stop", store.directory, "--now")
    ended.assert_refused(3)
    assert "ends what runs, and has not finished within 0.2 s." in ended.err


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(
    command: list[str], environment: dict[str, str], here: Path
) -> Iterator[Start]:
    """Return a function that starts a sweep and waits until a trial runs."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        Path("experiment.yaml").write_text(LONG)
        with Path("said").open("wb") as said:
            process = subprocess.Popen(
                [*command, "sweep", "experiment.yaml"],
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,
            )
        started.append(process)

        def runs_a_trial() -> bool:
            assert process.poll() is None, Path("said").read_text()
            return any(Path("runs").glob("small/trials/*/001/stream.jsonl"))

        wait_until(runs_a_trial, "a trial runs")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--now",)])
def test_a_sweep_is_stopped_and_goes_on(
    scalelab: Any, start: Start, here: Path, options: tuple[str, ...]
) -> None:
    process = start()
    ended = scalelab("stop", *options, "runs/small")
    assert ended.code == 0
    assert ended.out.startswith("Stop")
    assert f"process {process.pid} on host" in ended.out
    assert process.wait(60) == 130
    said = Path("said").read_text()
    assert "The sweep ended early: the sweep was stopped." in said
    assert "The same command goes on with them." in said
    before = RunStore.open(here / "runs" / "small").rows()
    outcomes = {row["outcome"] for row in before}
    assert outcomes == ({"cancelled"} if options else {"completed"})
    assert read_holder(Path("runs/small/driver.lease")) is None
    assert start().wait(100) == 0
    frame = RunStore.open(here / "runs" / "small").observations()
    done = frame[frame["outcome"] == "completed"]
    assert len(done) == done["trial_id"].nunique() == 8
    assert len(frame) == 8 + (len(before) if options else 0), "nothing ran in vain"


@pytest.mark.repetition
@pytest.mark.slow
def test_a_driver_that_stands_still_stops_once_it_goes_on(
    scalelab: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start()
    monkeypatch.setattr(stopping, "HEARD_WITHIN_S", 1.5)
    process.send_signal(signal.SIGSTOP)
    scalelab("stop", "runs/small").assert_refused(3)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 130


HOLDER = """
import sys, time
from pathlib import Path
from scalelab.records.control.lease import Lease

with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_what_does_not_answer_is_ended_by_a_signal(
    scalelab: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured_run(tmp_path / "run").directory
    monkeypatch.setattr(stopping, "HEARD_WITHIN_S", 0.2)
    command = [sys.executable, "-c", HOLDER, str(run / "driver.lease")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        ended = scalelab("stop", run, "--now")
        assert ended.code == 0, ended.err
        assert "was sent SIGTERM and has ended the sweep." in ended.out
        assert holder.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_what_still_runs_is_counted(
    scalelab: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "QUICK_S", 0.1)
    store = measured_run(tmp_path / "run")
    ledger = store.directory / "ledger.jsonl"
    with store.lease(), StopRequests(store.directory, look_every_s=0.01):
        said = scalelab("stop", store.directory).out
        assert "starts no more trials and gives its nodes back. See:" in said
        *earlier, _ = ledger.read_text().splitlines(keepends=True)
        ledger.write_text("".join(earlier))
        said = scalelab("stop", store.directory).out
        assert "starts no more trials and finishes 1 running trial. See:" in said

"""Whole sweeps as a user starts them: real processes, nodes, ranks and signals."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from measured_runs import EMULATED
from terminal import Terminal

from scalelab.records.store import RunStore

PATIENCE_S = 100
LONG = EMULATED.replace("steps: 5,", "steps: 60,")

Sweep = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(
    command: list[str], environment: dict[str, str], here: Path
) -> Iterator[Start]:
    """Return a function that starts ``scalelab sweep`` in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *options: str, **popen: object) -> subprocess.Popen[str]:
        Path("experiment.yaml").write_text(text)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen(
            [*command, "sweep", *options, "experiment.yaml"],
            text=True,
            start_new_session=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(_search_path())},
            **settings,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _search_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture
def sweep(start: Start) -> Sweep:
    """Return a function that sweeps to the end."""

    def sweep(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        process = start(text, *options)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess([], process.returncode, out, err)

    return sweep


def attempts(run: str = "runs/small") -> list[str]:
    return sorted(
        f"{path.parent.name}-{path.name}" for path in Path(run).glob("trials/*/*")
    )


def rows(run: str = "runs/small") -> list[dict[str, object]]:
    return [dict(row) for row in RunStore.open(Path(run)).rows()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_life_of_a_run(sweep: Sweep, here: Path) -> None:
    first = sweep(EMULATED)
    assert first.returncode == 0, first
    assert first.stderr.splitlines()[0] == f"Running 8 trials into {here}/runs/small."
    assert "Dask dashboard: http://127.0.0.1:" in first.stderr
    assert re.search(r"^8/8 done, 0 running, ", first.stderr, re.M)
    assert first.stdout.endswith(f"Report: {here}/runs/small/report.html\n")
    assert len(attempts()) == 8
    assert {row["outcome"] for row in rows()} == {"completed"}

    again = sweep(EMULATED)
    assert again.returncode == 0
    assert again.stderr.splitlines()[0] == (
        f"All 8 trials of {here}/runs/small are done."
    )
    assert "Dask" not in again.stderr
    assert again.stdout == first.stdout
    assert len(attempts()) == 8

    longer = EMULATED.replace("[4, 8]", "[4, 8, 16]").replace(
        "repeats: 2", "repeats: 3"
    )
    extended = sweep(longer, "--quiet")
    assert extended.returncode == 0
    assert len(attempts()) == 18
    assert all(name.endswith("-001") for name in attempts())
    assert "Report" not in extended.stdout
    assert "Running" not in extended.stderr

    changed = EMULATED.replace("2.0e-3", "3.0e-3")
    refused = sweep(changed)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert "parameters.sample_time_s: 0.002 -> 0.003" in refused.stderr
    assert len(attempts()) == 18

    accepted = sweep(changed, "--accept-changes")
    assert accepted.returncode == 0
    assert accepted.stderr.startswith(
        "Changed: parameters.sample_time_s: 0.002 -> 0.003."
    )
    assert sum(name.endswith("-002") for name in attempts()) == 8
    old = [row for row in rows() if row["attempt"] == 1]
    assert len(old) == 18
    assert all("code_changed" in row["validity"] for row in old)
    new = [row for row in rows() if row["attempt"] == 2]
    assert not any("code_changed" in row["validity"] for row in new)
    versions = json.loads(Path("runs/small/run.json").read_text())["versions"]
    assert len(versions) == 3


WORKLOAD = """\
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from scalelab import Workload

class Mine(Workload):
    def __init__(self, width: int = 2, data: str = "") -> None:
        self.width = width
        self.data = data

    def build_model(self):
        return torch.nn.Linear(self.width, 2)

    def training_data(self):
        if self.data:
            Path(self.data).read_text()
        points = torch.ones(256, self.width)
        return TensorDataset(points, torch.zeros(256, dtype=torch.int64))
"""
OWN = """\
name: small
workload: {{name: "mine:Mine", {parameters}}}
measure: {{warmup_steps: 1, steps: 5, repeats: 1}}
job: {{samples: 1000}}
gpus: [1, 2]
local_batch_size: 8
site: {{device_type: cpu, gpus_per_node: 2}}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_workload_of_ones_own(sweep: Sweep, here: Path) -> None:
    Path("mine.py").write_text(WORKLOAD)
    data = here / "data.txt"
    wrong = sweep(OWN.format(parameters="height: 3"))
    assert wrong.returncode == 2
    assert "height=3 is no parameter of workload 'mine:Mine'" in wrong.stderr
    assert wrong.stderr.splitlines()[-1].startswith("Error: ")

    text = OWN.format(parameters=f"data: {data}")
    absent = sweep(text)
    assert absent.returncode == 1, absent
    assert f"No such file or directory: '{data}'" in absent.stderr
    assert "rank-0.log" in absent.stderr
    assert "--retry-failed tries again" in absent.stderr
    data.write_text("")
    still = sweep(text)
    assert still.returncode == 1
    assert "All 2 trials" in still.stderr
    mended = sweep(text, "--retry-failed")
    assert mended.returncode == 0, mended
    (copy,) = Path("runs/small/code").iterdir()
    assert [path.name for path in copy.glob("*.*")] == ["mine.py"]

    Path("mine.py").write_text(WORKLOAD + "\n# another thought\n")
    refused = sweep(text)
    assert refused.returncode == 2
    assert re.search(r"code_hash: '\w{12}' -> '\w{12}'", refused.stderr)


SCRIPT = """\
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
arguments = parser.parse_args()
world = int(os.environ["WORLD_SIZE"])
for step in range(1, 1000):
    time.sleep(0.005)
    if os.environ["RANK"] == "0":
        print(f"step {step} samples {step * arguments.batch * world}", flush=True)
"""
COMMAND = """\
name: small
command: python script.py --batch {local_batch_size}
metrics: {regex: 'step (?P<step>[0-9]+) samples (?P<samples>[0-9]+)'}
measure: {warmup_steps: 2, steps: 20, repeats: 1}
job: {samples: 1000}
gpus: [1, 2]
local_batch_size: 8
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_command_is_swept_and_resumed(sweep: Sweep, here: Path) -> None:
    Path("script.py").write_text(SCRIPT)
    first = sweep(COMMAND)
    assert first.returncode == 0, first
    again = sweep(COMMAND)
    assert again.returncode == 0, again
    assert "All 2 trials" in again.stderr


@pytest.mark.slow
def test_a_budget_ends_a_sweep(sweep: Sweep, here: Path) -> None:
    ended = sweep(LONG, "--sweep-budget", "0.00001gpu-h")
    assert ended.returncode == 0
    assert (
        "The sweep ended early: the budget of 1e-05 GPU-hours is spent" in ended.stderr
    )
    assert re.search(
        r"^Not run: \d trials?\. The same command goes on", ended.stderr, re.M
    )
    assert 0 < len(attempts()) < 8


@pytest.mark.slow
def test_a_cluster_that_refuses_has_its_own_exit_code(
    sweep: Sweep, here: Path, environment: dict[str, str]
) -> None:
    environment["CUDA_VISIBLE_DEVICES"] = ""
    ended = sweep(EMULATED.replace("device_type: cpu", "device_type: cuda"))
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].startswith("Error: ")


def wait_for_a_step(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until a trial steps; return every process of the sweep."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(Path("runs/small").glob("trials/*/*/stream.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [
        psutil.Process(process.pid),
        *psutil.Process(process.pid).children(recursive=True),
    ]


def assert_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 30
    while left := [p for p in processes if _lives(p)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    """Signal the whole process group, as a terminal does."""
    os.killpg(process.pid, number)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_finishes_what_runs_and_the_next_sweep_goes_on(
    start: Start, sweep: Sweep, here: Path
) -> None:
    process = start(LONG)
    processes = wait_for_a_step(process)
    interrupt(process)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert out == ""
    assert "Stopping: the sweep was stopped; " in err
    assert "The same command goes on with them." in err
    assert "Traceback" not in err
    assert_gone(processes)
    finished = attempts()
    assert {row["outcome"] for row in rows()} == {"completed"}
    assert 0 < len(finished) < 8

    rest = sweep(LONG)
    assert rest.returncode == 0, rest
    assert rest.stderr.startswith(
        f"Continuing {here}/runs/small: {len(finished)} trial"
    )
    assert len(attempts()) == 8
    assert set(finished) < set(attempts())


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [("SIGINT", "SIGINT"), ("SIGTERM",)])
def test_a_second_ctrl_c_or_a_kill_leaves_no_process(
    start: Start, here: Path, numbers: tuple[str, ...]
) -> None:
    process = start(LONG.replace("steps: 60", "steps: 2000"))
    processes = wait_for_a_step(process)
    for number in numbers:
        interrupt(process, getattr(signal, number))
        time.sleep(0.2)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "cancelled" in err
    assert "Traceback" not in err
    assert_gone(processes)
    assert {row["outcome"] for row in rows()} <= {"cancelled", "completed"}
    assert not list(Path("runs/small").glob("driver.lease"))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_before_the_nodes_are_up(start: Start, here: Path, times: int) -> None:
    process = start(LONG)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first.startswith("Running 8 trials")
    children = psutil.Process(process.pid).children(recursive=True)
    for _ in range(times):
        interrupt(process)
        time.sleep(0.3)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert_gone(children)
    assert attempts() == []


@pytest.mark.slow
def test_the_run_of_a_killed_driver_goes_on(
    start: Start, sweep: Sweep, here: Path
) -> None:
    process = start(LONG)
    processes = wait_for_a_step(process)
    process.kill()
    process.communicate()
    assert_gone(processes)
    rest = sweep(LONG)
    assert rest.returncode == 0, rest
    completed = [row["trial_id"] for row in rows() if row["outcome"] == "completed"]
    assert len(completed) == len(set(completed)) == 8


@pytest.mark.slow
def test_two_drivers_of_one_run(start: Start, sweep: Sweep, here: Path) -> None:
    process = start(LONG)
    wait_for_a_step(process)
    other = sweep(LONG)
    assert other.returncode == 2
    assert "Error: " in other.stderr
    assert process.poll() is None
    interrupt(process, signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def terminal() -> Iterator[Callable[[int], Terminal]]:
    made: list[Terminal] = []

    def make(columns: int) -> Terminal:
        made.append(Terminal(columns))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "no_color"), [(100, False), (40, False), (100, True)]
)
def test_a_terminal_shows_live_progress(
    start: Start, environment, here, terminal, columns: int, no_color: bool
) -> None:
    environment["TERM"] = "xterm-256color"
    if no_color:
        environment["NO_COLOR"] = "1"
    made = terminal(columns)
    process = start(EMULATED, **made.ends)
    text = made.read_until(process)
    assert process.wait(PATIENCE_S) == 0, text
    assert "\x1b[2K" in text, "lines are redrawn"
    has_bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in text
    assert has_bar == (columns >= 80)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) == (has_bar and not no_color)
    assert "8/8 done, 0 running" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    answer = plain.partition("8/8 done, 0 running")[2].splitlines()[1:]
    shown = [line for line in answer if "/" not in line]
    assert max(map(len, shown)) <= columns


@pytest.mark.parametrize("reply", ["n\n", "\x04"])
def test_a_large_sweep_asks_and_takes_no_for_an_answer(
    start: Start, here: Path, terminal, reply: str
) -> None:
    made = terminal(80)
    asking = EMULATED + "confirm_above: {trials: 7}\n"
    process = start(asking, **made.ends)
    made.read_until(process, "[y/N]")
    made.write(reply)
    text = made.read_until(process)
    assert process.wait(PATIENCE_S) == 130, text
    assert "This sweep runs 8 trials" in text
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_breakpoint_opens_the_debugger(start: Start, here: Path) -> None:
    Path("mine.py").write_text(
        WORKLOAD.replace(
            "        return torch.nn.Linear",
            "        breakpoint()\n        return torch.nn.Linear",
        )
    )
    process = start(
        OWN.format(parameters="width: 3"), "--in-process", stdin=subprocess.PIPE
    )
    out, err = process.communicate("p 'width', self.width\nc\n", timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "('width', 3)" in out
    assert "(Pdb)" in out
    assert re.search(r"^completed: .*1 devices? on 1x1", out.split("(Pdb)")[-1].strip())
    assert "  step_time_s " in out
    assert sorted(os.listdir()) in (
        ["experiment.yaml", "mine.py"],
        ["__pycache__", "experiment.yaml", "mine.py"],
    )


@pytest.mark.slow
def test_a_reader_that_leaves_gets_no_traceback(
    command: list[str], environment: dict[str, str], here: Path
) -> None:
    Path("experiment.yaml").write_text(EMULATED)
    line = '{ "$@" 2>&1 1>/dev/null; } | head -1; exit "${PIPESTATUS[0]}"'
    ended = subprocess.run(
        ["bash", "-c", line, "-", *command, "sweep", "experiment.yaml"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE_S,
    )
    assert ended.stdout == f"Running 8 trials into {here}/runs/small.\n"
    assert ended.stderr == ""
    assert ended.returncode in (0, 141)

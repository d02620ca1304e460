"""Sweeps that users watch and interrupt: signals, terminals, pipes."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from measured_runs import EMULATED
from real_sweeps import (
    LONG,
    PATIENCE_S,
    Start,
    Sweep,
    assert_gone,
    attempts,
    interrupt,
    rows,
    wait_for_a_step,
)

# Trials of minutes, which do not end early because their mean is precise.
ENDLESS = LONG.replace("steps: 60,", "steps: 20000, relative_precision: 1.0e-9,")


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
@pytest.mark.parametrize(
    "numbers",
    [("SIGINT", "SIGINT"), pytest.param(("SIGTERM",), marks=pytest.mark.repetition)],
)
def test_a_second_ctrl_c_or_a_kill_leaves_no_process(
    start: Start, here: Path, numbers: tuple[str, ...]
) -> None:
    process = start(ENDLESS)
    processes = wait_for_a_step(process)
    first, *further = numbers
    interrupt(process, getattr(signal, first))
    for number in further:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).startswith("Stopping: "):
            assert line, "it ended at the first"
        interrupt(process, getattr(signal, number))
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "cancelled" in err
    assert "Traceback" not in err
    assert_gone(processes)
    assert {row["outcome"] for row in rows()} <= {"cancelled", "completed"}
    assert not list(Path("runs/small").glob("driver.lease"))


@pytest.mark.slow
@pytest.mark.repetition
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
    # A shell calls both 130: a signal may come after the interpreter has let go of it.
    assert process.returncode in (130, -signal.SIGINT), err
    assert out == ""
    assert "Traceback" not in err
    assert_gone(children)
    assert attempts() == []


@pytest.mark.repetition
@pytest.mark.slow
def test_ctrl_c_while_nodes_import_is_for_the_driver_alone(
    start: Start, here: Path
) -> None:
    process = start(LONG.replace("gpus_per_node", "nodes: 3, gpus_per_node"))
    driver = psutil.Process(process.pid)
    deadline = time.monotonic() + PATIENCE_S
    while not any(is_node(each) for each in driver.children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = driver.children(recursive=True)
    interrupt(process)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert out == ""
    said = [line for line in err.splitlines() if not line.startswith("starting nodes")]
    assert said[1:] == [
        "Interrupted: the sweep ends as soon as its nodes have started.",
        "Interrupted.",
    ]
    assert_gone(children)


def is_node(process: psutil.Process) -> bool:
    """Tell whether a process is a node's; False where it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return "--multiprocessing-fork" in process.cmdline()
    return False


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace")
def test_a_lost_network_ends_without_a_traceback(
    command: list[str], environment: dict[str, str], here: Path
) -> None:
    Path("experiment.yaml").write_text(ENDLESS)
    script = (
        f"ip link set lo up; {shlex.join(command)} sweep experiment.yaml & driver=$!\n"
        "until ls runs/small/trials/*/001/stream.jsonl; do sleep 0.1; done >/dev/null"
        "\n"
        "ip link set lo down; wait $driver"
    )
    ended = subprocess.run(
        ["unshare", "--net", "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode in (1, 3), ended
    assert "Traceback" not in ended.stderr
    assert "distributed" not in ended.stderr


@pytest.mark.slow
@pytest.mark.repetition
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


@pytest.mark.repetition
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "no_color"),
    [
        (100, False),
        pytest.param(40, False, marks=pytest.mark.repetition),
        pytest.param(100, True, marks=pytest.mark.repetition),
    ],
)
def test_a_terminal_shows_live_progress(
    start: Start,
    environment: Any,
    here: Any,
    terminal: Any,
    columns: int,
    no_color: bool,
) -> None:
    environment["TERM"] = "xterm-256color"
    if no_color:
        environment["NO_COLOR"] = "1"
    made = terminal(columns)
    process = start(EMULATED, **made.ends)
    text = made.read_until(process)
    assert process.wait(PATIENCE_S) == 0, text
    assert "\x1b[2K" in text, "lines are redrawn"
    # Before the first trial the line is short, and leaves room for a bar everywhere.
    has_bar = bool(re.search("\N{BOX DRAWINGS HEAVY HORIZONTAL}[^\r\n]*8 done", text))
    assert has_bar == (columns >= 80 and not no_color)
    assert ("#...." in text) == (columns >= 80 and no_color)
    assert has_bar <= bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) <= (not no_color)
    assert "8/8 done, 0 running" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    answer = plain.partition("8/8 done, 0 running")[2].splitlines()[1:]
    shown = [line for line in answer if "/" not in line]
    # intervals and what they rest on stay, however narrow the terminal
    assert max(map(len, shown)) <= max(columns, 52)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply", ["n\n", pytest.param("\x04", marks=pytest.mark.repetition)]
)
def test_a_large_sweep_asks_and_takes_no_for_an_answer(
    start: Start, here: Path, terminal: Callable[..., Any], reply: str
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


@pytest.mark.repetition
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

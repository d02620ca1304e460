"""Canaries in whole sweeps: real ranks, slowed down by real neighbours."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_sweeps import PATIENCE_S, Start, Sweep, assert_gone, rows, wait_for_a_step

from scalelab.experiment.trial import FIRST_CANARY

DIGITS = """\
name: small
workload: {name: digits_mlp, hidden_sizes: [64]}
measure: {long_trial: none, warmup_steps: 5, steps: 100, repeats: 8, canary_every: 4}
job: {samples: 100000}
gpus: 1
local_batch_size: [16, 32, 64]
learning_rate: 0.1
site: {device_type: cpu, gpus_per_node: 1}
"""
EMULATED = """\
name: small
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {long_trial: none, warmup_steps: 1, steps: 10, repeats: 3, canary_every: 3}
job: {samples: 100000}
gpus: [1, 2]
local_batch_size: [4, 8]
site: {device_type: cpu, gpus_per_node: 2}
"""
BUSY = "import os\nos.sched_setaffinity(0, {int(input())})\nwhile True: pass"


@pytest.fixture
def come() -> Iterator[Callable[[str], None]]:
    """Return what sends busy neighbours to a core, so that a rank gets a share of it.

    They have started before: on a busy core that would take them a while. Each has a
    session of its own: Linux may share a core between sessions, not processes.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(6)
    ]

    def come(core: str) -> None:
        for process in started:
            assert process.stdin is not None
            print(core, file=process.stdin, flush=True)

    yield come
    for process in started:
        process.kill()
        process.communicate()


def wait_until(process: subprocess.Popen[str], num_ended: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(list(Path("runs/small").glob("trials/*/*/result.json"))) < num_ended:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def canaries() -> list[int]:
    """Return after how many trials each canary was due, in the order they started."""
    ordered = sorted(rows(), key=lambda row: str(row["started_at"]))
    repeats = [int(str(row["repeat"])) for row in ordered]
    return [repeat - FIRST_CANARY for repeat in repeats if repeat >= FIRST_CANARY]


@pytest.mark.repetition
@pytest.mark.slow
def test_neighbours_that_come_halfway_are_seen_and_said(
    start: Start, scalelab: Any, here: Path, come: Callable[[str], None]
) -> None:
    process = start(DIGITS)
    wait_until(process, num_ended=14)
    (core,) = rows()[0]["device_ids"]
    come(core)
    out, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, err
    assert canaries() == [0, 4, 8, 12, 16, 20, 24]
    said = [line for line in out.splitlines() if "machine s" in line]
    assert len(said) == 1
    assert "% longer at the end of the sweep than at its beginning" in said[0]
    assert said[0] in scalelab("status", "runs/small").out.splitlines()
    assert said[0] in Path("runs/small/report.html").read_text()


@pytest.mark.repetition
@pytest.mark.slow
def test_the_canaries_of_a_killed_sweep_are_neither_lost_nor_repeated(
    start: Start, sweep: Sweep, scalelab: Any, here: Path
) -> None:
    Path("experiment.yaml").write_text(EMULATED)
    planned = scalelab("plan", "experiment.yaml").out.splitlines()
    assert planned[0] == "small on site local: 17 trials"
    canary = "     5  canary            1  1x1                    4  4 x 1 x 1"
    assert planned[3] == canary

    process = start(EMULATED)
    processes = wait_for_a_step(process)
    wait_until(process, num_ended=5)
    process.kill()
    process.communicate()
    assert_gone(processes)
    rest = sweep(EMULATED)

    assert rest.returncode == 0, rest
    completed = [row for row in rows() if row["outcome"] == "completed"]
    assert len({row["trial_id"] for row in completed}) == len(completed) == 17
    due = Counter(row["repeat"] for row in completed)
    assert [due[FIRST_CANARY + moment] for moment in (0, 3, 6, 9, 12)] == [1] * 5
    again = sweep(EMULATED)
    assert again.stderr.startswith("All 17 trials of ")

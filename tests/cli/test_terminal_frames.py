"""What a user sees of a sweep, frame by frame, on a terminal of 80 columns."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest
from real_sweeps import PATIENCE_S, Start, interrupt

COLUMNS, ROWS = 80, 24
PROGRAM = """\
import sys, time
batch = int(sys.argv[1])
if batch == 32:
    raise ValueError("a batch of 32 is too odd")
for step in range(1, 13):
    time.sleep(0.05)
    print("step", step, "samples", step * batch, flush=True)
    if batch == 64 and step == 3:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
"""
EXPERIMENT = """\
name: small
command: python program.py {local_batch_size}
launcher: none
code: {snapshot: program.py}
metrics: {regex: 'step (?P<step>\\d+) samples (?P<samples>\\d+)'}
measure: {long_trial: none, warmup_steps: 2, steps: 10, repeats: 2, canary_every: 0}
job: {samples: 100000}
gpus: 1
local_batch_size: [8, 16, 32, 64]
site: {device_type: cpu, gpus_per_node: 1}
"""
COUNTS = re.compile(
    r"(?P<done>\d+)/(?P<all>\d+) done, (?P<running>\d+) running"
    r"(?:, (?P<failed>\d+) failed)?(?:, (?P<unfitting>\d+) out of memory)?"
    r", (?P<hours>[\d.]+) core-h"
)


def frames(text: str) -> Iterator[list[str]]:
    """Yield what a terminal shows after each piece of a program's output."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    for piece in re.split(r"(?<=\n)|(?=\r)", text):
        stream.feed(piece)
        yield [line.rstrip() for line in screen.display]


def counted(lines: list[str]) -> list[dict[str, float]]:
    found = filter(None, map(COUNTS.search, lines))
    return [{n: float(v or 0) for n, v in m.groupdict().items()} for m in found]


def status(command: list[str]) -> Any:
    asked = [*command, "status", "runs/small", "--json"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return json.loads(said)


@pytest.fixture
def program(here: Path, environment: dict[str, str]) -> None:
    environment["TERM"] = "xterm-256color"
    Path("program.py").write_text(PROGRAM)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("program")
def test_its_counts_are_those_of_the_run_through_failures_and_ctrl_c(
    start: Start, command: list[str], terminal: Callable[[int], Any]
) -> None:
    latest: dict[str, float] = {"done": 0, "failed": 0, "unfitting": 0, "hours": 0}
    for is_interrupted in (True, False):
        made = terminal(COLUMNS)
        process = start(EXPERIMENT, "--skip-check", **made.ends)
        if is_interrupted:
            made.read_until(process, " failed")
            interrupt(process, signal.SIGINT)
        text = made.read_until(process)
        code = process.wait(PATIENCE_S)
        assert code == (130 if is_interrupted else 1), text

        last: list[str] = []
        for last in frames(text):
            for counts in counted(last):
                for name, before in latest.items():
                    assert counts[name] >= before, (name, last)
                latest = {name: counts[name] for name in latest}
        known = status(command)
        outcomes = known["outcomes"]
        ended = sum(outcomes.values())
        assert latest["done"] == ended == 8 - known["num_missing"]
        assert latest["failed"] == outcomes.get("failed", 0) > 0
        assert latest["unfitting"] == outcomes.get("out_of_memory", 0)
        # The screen shows four decimals of so few hours, or three digits of more.
        shown_hours = pytest.approx(known["used_gpu_s"] / 3600, rel=0.01, abs=5.1e-5)
        assert latest["hours"] == shown_hours

        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        for line in re.split(r"[\r\n]+", plain):
            assert len(line) <= COLUMNS or " " not in line.strip(), "broken in a word"

        shown = "\n".join(last)
        assert "Stopping" not in shown.partition(" done, 0 running")[2]
        assert " left" not in shown, "of a sweep that is over"
        if is_interrupted:
            missing = (
                f"Not run: {known['num_missing']} trials. The same command goes on"
            )
            assert missing in " ".join(shown.split())
            assert 0 < known["num_missing"] < 8
    assert latest["unfitting"] == 2


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("program")
def test_ctrl_c_in_the_first_trial_ends_with_a_sentence(
    start: Start, terminal: Callable[[int], Any]
) -> None:
    made = terminal(COLUMNS)
    process = start(EXPERIMENT, **made.ends)
    made.read_until(process, "1 running")
    interrupt(process, signal.SIGINT)
    text = made.read_until(process)
    assert process.wait(PATIENCE_S) == 130, text
    *_, last = frames(text)
    said = " ".join(" ".join(last).split())
    assert re.search(r"Not run: \d trials\. The same command goes on with them\.", said)

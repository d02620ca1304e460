"""First trials of real scripts: ``try``, and the first trial of a sweep."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from command_specs import MEET
from real_sweeps import PATIENCE_S, Sweep, attempts, rows
from warm_interpreter import WarmInterpreter

from scalelab.cli.shown.first_trials import table, verdict
from scalelab.plan.first_check import findings
from scalelab.records.columns import COLUMNS
from scalelab.running.execution import Checked, Tried

GOOD = (
    MEET
    + """\
import argparse, os, time

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int)
batch, ranks = options.parse_args().batch, int(os.environ["WORLD_SIZE"])
held = meet()
for step in range(1, 200):
    time.sleep(0.002 * batch)
    if os.environ["RANK"] == "0":
        samples, loss = step * batch * ranks, 1 / step + 1 / (batch * ranks)
        print(f"step {step} samples {samples} loss {loss:.4f}", flush=True)
"""
)
CRASHES = """\
def load(path):
    raise FileNotFoundError(f"no data in {path}")

load("/nowhere")
"""
UNREAD = """\
for step in range(1, 20):
    print(f"Iteration {step}/20: loss 0.5")
"""
EXPERIMENT = """\
name: small
command: python train.py --batch {local_batch_size}
code: {snapshot: [train.py]}
metrics: {regex: 'step (?P<step>\\d+) samples (?P<samples>\\d+) loss (?P<loss>\\S+)'}
measure: {long_trial: none, warmup_steps: 1, steps: 20, repeats: 2}
job: {samples: 10000}
gpus: [2, 1]
local_batch_size: [8, 4]
site: {device_type: cpu, gpus_per_node: 2}
"""
FOUR = (
    EXPERIMENT.replace("[train.py]", "[train.py, unread.py]")
    .replace(
        "command: python train.py --batch {local_batch_size}\n",
        "program:\n"
        "- {name: crashing, command: 'python train.py {local_batch_size}'}\n"
        "- {name: silent, command: 'echo {local_batch_size} steps'}\n"
        "- {name: unread, command: 'python unread.py {local_batch_size}'}\n"
        "- {name: waiting, command: 'sleep {local_batch_size}00'}\n",
    )
    .replace("repeats: 2", "repeats: 2, start_up_timeout: 10s")
)


def tried(
    warm: WarmInterpreter, environment: dict[str, str], text: str, *options: str
) -> subprocess.CompletedProcess[str]:
    Path("experiment.yaml").write_text(text)
    words = ("try", *options, "experiment.yaml")
    ended = warm(*words, environment=environment, timeout_s=PATIENCE_S)
    assert "Traceback" not in ended.stderr, ended
    return ended


def cells(output: str, label: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.startswith(label)]
    return re.split(r"  +", line.removeprefix(label).strip())


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_good_script_is_tried_on_one_device_and_on_two(
    warm: WarmInterpreter, environment: dict[str, str], here: Path
) -> None:
    Path("train.py").write_text(GOOD)
    ended = tried(warm, environment, EXPERIMENT)
    assert ended.returncode == 0, ended
    assert cells(ended.stdout, "outcome") == ["completed", "completed"]
    assert cells(ended.stdout, "batch") == ["4 = 4 x 1", "8 = 4 x 2"]
    assert cells(ended.stdout, "loss")[0].endswith(", falling")
    assert cells(ended.stdout, "ranks met") == ["one rank", "yes (sockets)"]
    assert cells(ended.stdout, "rate, measured")[0].endswith(" samples/s")
    seen = [int(cell.split()[0]) for cell in cells(ended.stdout, "steps seen")]
    assert all(11 <= steps < 199 for steps in seen), "a few steps, not the training"
    assert ended.stdout.endswith("Next: scalelab sweep experiment.yaml\n")
    assert max(map(len, ended.stdout.splitlines())) <= 100
    assert sorted(map(str, here.iterdir())) == [
        f"{here}/experiment.yaml",
        f"{here}/train.py",
    ], "nothing is left where all was well"


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scripts_that_crash_or_are_silent_are_told_with_their_logs(
    warm: WarmInterpreter, environment: dict[str, str], here: Path
) -> None:
    Path("train.py").write_text(CRASHES)
    Path("unread.py").write_text(UNREAD)
    ended = tried(warm, environment, FOUR)
    assert ended.returncode == 1, ended
    assert ended.stdout.count("outcome           failed\n") == 3
    found = ended.stdout.partition("Wrong: ")[2].split("Wrong: ")
    crashing, silent, unread, waiting = found
    assert crashing.startswith("crashing, 1 device: ")
    assert "FileNotFoundError at train.py:2: no data in /nowhere" in crashing
    assert silent.startswith("silent, 1 device: ")
    assert "Change in the experiment" not in silent
    assert unread.startswith("unread, 1 device: ")
    (change,) = re.findall(r"  Change in the experiment:\n    (.*)", unread)
    regex = yaml.safe_load(change)["metrics"]["regex"]
    assert re.search(regex, "Iteration 7/20: loss 0.5")["step"] == "7"  # type: ignore[index]
    assert waiting.startswith("waiting, 1 device: no step came for too long.")
    assert "    measure: {long_trial: none, start_up_timeout: 30min}\n" in waiting
    assert "Not tried: crashing, 2 devices." in waiting
    logs = [Path(each) for each in re.findall(r"Log: (\S+)", ended.stdout)]
    assert all(log.is_relative_to(here / "runs" / ".small.try") for log in logs)
    assert "no data in /nowhere" in logs[0].read_text()
    assert logs[1].read_text() == "4 steps\n"
    assert os.listdir("runs") == [".small.try"], "no run that a sweep would go on with"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_stops_after_its_first_trial_and_goes_on_once_it_is_mended(
    sweep: Sweep, here: Path
) -> None:
    Path("train.py").write_text(CRASHES)
    stopped = sweep(EXPERIMENT)
    assert stopped.returncode == 1, stopped
    assert len(attempts()) == 1, "nothing more was spent"
    (row,) = rows()
    assert (row["world_size"], row["local_batch_size"]) == (1, 4)
    assert "FileNotFoundError at train.py:2: no data in /nowhere" in stopped.stderr
    assert "Not run: 7 trials. The same command goes on with them." in stopped.stderr
    assert stopped.stdout == ""

    # The same command again tries again, though nothing that is recorded changed.
    again = sweep(EXPERIMENT)
    assert again.returncode == 1, again
    assert [row["attempt"] for row in rows()] == [1, 2]

    Path("train.py").write_text(GOOD)
    mended = sweep(EXPERIMENT)
    assert mended.returncode == 0, mended
    first, *others = rows()[2:]
    assert (first["world_size"], first["local_batch_size"]) == (1, 4)
    assert others[0]["world_size"] == 2
    assert all(other["started_at"] >= first["ended_at"] for other in others)
    assert len(others) == 7


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.repetition
def test_a_sweep_can_skip_the_check(sweep: Sweep, here: Path) -> None:
    Path("train.py").write_text(CRASHES)
    ended = sweep(EXPERIMENT, "--skip-check")
    assert ended.returncode == 1, ended
    assert len(attempts()) == 8


def test_both_rates_are_said() -> None:
    row = dict.fromkeys((column.name for column in COLUMNS), None) | {
        "outcome": "completed",
        "world_size": 1,
        "data_parallel_size": 1,
        "local_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "global_batch_size": 16,
        "num_steps": 10,
        "num_samples": 192,
        "step_time_s": 0.088,
        "reported_step_time_s": 1.39,
    }
    checked = Checked(
        row=row,
        program=None,
        losses=(2.0, 1.8, 1.6, 1.4),
        findings=tuple(findings(row)),
        log=Path("rank-0.log"),
    )
    tried = Tried(trials=(checked,), not_tried=(), directory=None)
    assert not tried.is_well
    shown = "\n".join(table(tried))
    assert cells(shown, "rate, measured") == ["182 samples/s"]
    assert cells(shown, "rate, its own") == ["11.5 samples/s (1.4 s)"]
    assert cells(shown, "loss") == ["2 -> 1.4, falling"]
    (said,) = verdict(tried)
    assert said.startswith(
        "Wrong: two rates disagree: 88 ms a step and 182 samples/s were measured, the "
        "program's own rate says 1.4 s and 11.5 samples/s. What its lines count is not "
        "what metrics says"
    )


@pytest.mark.parametrize(
    ("marks", "is_emulated", "why"),
    [
        (
            ["oversubscribed_cores", "code_changed"],
            False,
            "there were more ranks than cores, the code changed during the sweep",
        ),
        (["unsteady_clock"], False, "the node's clock was set during the trial"),
        (
            ["unsteady_clock"],
            True,
            "the computer was too busy to keep the declared times",
        ),
    ],
)
def test_why_a_sweep_would_leave_a_trial_out_is_said_in_words(
    marks: list[str], is_emulated: bool, why: str
) -> None:
    row = dict.fromkeys((column.name for column in COLUMNS), None) | {
        "outcome": "completed",
        "world_size": 1,
        "validity": marks,
        "emulated": is_emulated,
    }
    found = tuple(findings(row))
    checked = Checked(row=row, program=None, losses=(), findings=found, log=Path("log"))
    assert verdict(Tried(trials=(checked,), not_tried=(), directory=None)) == [
        f"Note: a sweep would leave this trial out of its fits: {why}."
    ]


def test_wrong_input_is_refused(
    warm: WarmInterpreter, environment: dict[str, str], here: Path
) -> None:
    ended = tried(warm, environment, "name: small\nworkload: nowhere\n")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: ")

"""Adaptive sweeps as they are run: real ranks, commands, nodes, drivers that die."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_interpreter import WarmInterpreter

from scalelab.plan.inquiry import Ending
from scalelab.records.observations import frame
from scalelab.records.store import RunReader
from scalelab.session import import_table, load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 240
# on a busy machine two counts may scatter too much to be told apart
ENDINGS = {
    Ending.KNOWN: ": known.",
    Ending.EXHAUSTED: ": all that could be told apart was measured.",
}
SCALELAB = [sys.executable, "-m", "scalelab"]
DIGITS = """\
name: swept
workload: {name: digits_mlp, hidden_sizes: [256, 256]}
measure: {long_trial: none, warmup_steps: 5, steps: 200, repeats: 3}
job: {epochs: 200000, samples_per_epoch: 1437}
gpus: [1, 2]
local_batch_size: {from: 32, to: 256}
learning_rate: 0.1
source: {name: adaptive, question: {max_time: 5h}}
site: {device_type: cpu, gpus_per_node: 2}
"""
SCRIPT = """\
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
given = parser.parse_args()
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 31):
        time.sleep(0.005 + 2e-4 * given.batch)
        samples = step * given.batch
        metrics.write(json.dumps({"step": step, "samples": samples}) + "\\n")
"""
COMMAND = """\
name: swept
command: python train.py --batch {local_batch_size}
launcher: none
code: {snapshot: [train.py]}
measure: {long_trial: none, warmup_steps: 5, steps: 25, repeats: 2}
job: {samples: 100000000}
gpus: 1
local_batch_size: {from: 8, to: 64}
source: {name: adaptive}
site: {device_type: cpu, gpus_per_node: 2}
"""
TWO_NODES = """\
name: swept
workload: {name: emulated, sample_time_s: 1.0e-4, fixed_time_s: 5.0e-3}
measure: {long_trial: none, warmup_steps: 2, steps: 20, repeats: 3}
job: {samples: 1000000000}
gpus: {from: 1, to: 8}
local_batch_size: {from: 16, to: 64}
source: {name: adaptive}
site: {device_type: cpu, nodes: 2, gpus_per_node: 4}
"""


@pytest.fixture(
    params=[
        pytest.param(COMMAND, id="command"),
        pytest.param(DIGITS, id="digits", marks=pytest.mark.repetition),
        pytest.param(TWO_NODES, id="nodes", marks=pytest.mark.repetition),
    ]
)
def home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    (tmp_path / "e.yaml").write_text(request.param)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(budget: str, *more: str) -> subprocess.Popen[str]:
    command = [*SCALELAB, "sweep", "e.yaml", "--yes", "--sweep-budget", budget, *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


Swept = Callable[..., tuple[int, str]]


@pytest.fixture
def swept(warm: WarmInterpreter) -> Swept:
    def swept(budget: str, *more: str) -> tuple[int, str]:
        words = ("sweep", "e.yaml", "--yes", "--sweep-budget", budget, *more)
        ended = warm(*words, timeout_s=PATIENCE_S)
        return ended.returncode, ended.stdout + ended.stderr

    return swept


def num_ended(run: Path) -> int:
    return len(RunReader.open(run).rows()) if (run / "run.json").exists() else 0


def test_drivers_that_die_measure_nothing_twice_and_keep_the_budget(
    home: Path, swept: Swept, warm: WarmInterpreter
) -> None:
    run, rng = home / "runs" / "swept", random.Random(7)
    for number in (signal.SIGKILL, signal.SIGINT):
        process, before = sweep("5core-min"), num_ended(run)
        deadline_s = time.monotonic() + PATIENCE_S
        while process.poll() is None and num_ended(run) <= before:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.5))
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)

    code, text = swept("5core-min")
    assert code == 0, text
    inquiry = load(run).status().inquiry
    assert inquiry is not None
    assert inquiry.ending in ENDINGS
    assert inquiry.surety is not None
    assert (inquiry.surety >= 0.9) == (inquiry.ending is Ending.KNOWN)
    ended = ENDINGS[inquiry.ending]
    assert ended in text
    reader = RunReader.open(run)
    measured = Counter(
        row["trial_id"] for row in reader.rows() if row["outcome"] == "completed"
    )
    assert set(measured.values()) == {1}
    used_s = sum(row["allocated_gpu_s"] or 0.0 for row in reader.rows())
    assert used_s <= 300.0

    for said in (load(run).summary, (run / "report.html").read_text()):
        assert "at most 5% worse than the best)" in said

    planned = warm("plan", "e.yaml")
    assert f"{ended}\n" in planned.stdout
    assert "Device time to come" not in planned.stdout, "there is none"

    again, said = swept("5core-min")
    assert again == 0
    assert num_ended(run) == len(reader.rows()), said


@pytest.mark.parametrize("home", [TWO_NODES], indirect=True)
def test_more_budget_goes_on_and_rows_of_another_run_are_a_start(
    home: Path, swept: Swept
) -> None:
    code, text = swept("8s")
    assert code == 0, text
    assert "The sweep ended early: the budget of 8 s is spent" in text or (
        ": the budget is spent." in text
    )
    before = num_ended(home / "runs" / "swept")
    code, text = swept("5min")
    assert code == 0, text
    assert ": known." in text
    every = RunReader.open(home / "runs" / "swept").rows()
    # The end of the first budget may have cancelled an attempt.
    ended = [row for row in every if row["outcome"] == "completed"]
    assert len(ended) > before

    code, text = swept("5min", "--run", "runs/other", "--adapt", "runs/swept")
    assert code == 0, text
    other = RunReader.open(home / "runs" / "other").rows()
    own = [row for row in other if row["kind"] != "imported"]
    assert len(other) - len(own) == len(ended)
    assert len(own) < len(ended), "what was measured there is not measured again"
    answer = load(home / "runs" / "other").recommend()
    assert answer.num_observations == len(other)


@pytest.mark.repetition
@pytest.mark.parametrize("home", [TWO_NODES], indirect=True)
def test_rows_of_a_table_are_a_start(home: Path, swept: Swept) -> None:
    code, text = swept("5min")
    assert code == 0, text
    every = RunReader.open(home / "runs" / "swept").rows()
    ended = [row for row in every if row["outcome"] == "completed"]
    table = frame(ended)[["world_size", "num_nodes", "local_batch_size", "step_time_s"]]
    table.to_csv("table.csv", index=False)
    import_table("table.csv", "runs/table")
    code, text = swept("5min", "--run", "runs/other", "--adapt", "runs/table")
    assert code == 0, text
    other = RunReader.open(home / "runs" / "other").rows()
    assert sum(row["kind"] != "imported" for row in other) < len(ended)


@pytest.mark.parametrize("home", [TWO_NODES], indirect=True)
def test_without_a_budget_nothing_runs(home: Path, warm: WarmInterpreter) -> None:
    ended = warm("sweep", "e.yaml")
    assert ended.returncode == 2
    assert "--sweep-budget 10gpu-h" in ended.stderr
    assert not (home / "runs").exists()

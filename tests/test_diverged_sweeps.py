"""Sweeps of a program that diverges: interrupted, resumed, every trial counted once."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm_interpreter import WarmInterpreter

from scalelab.records.store import RunReader
from scalelab.session import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 100
SCALELAB = [sys.executable, "-m", "scalelab"]
PROGRAM = """\
import sys, time

rate, loss = float(sys.argv[1]), 1.0
for step in range(1, 201):
    loss = loss * (1 - rate / 10) if rate < 0.5 else loss * 1e3
    loss = float("nan") if loss > 1e30 else loss
    print(f"step {step} loss {loss:.5g}", flush=True)
    if step % 10 == 0:
        time.sleep(0.02)
        print(f"step {step} val_loss {loss:.5g}", flush=True)
"""
METRICS = """\
metrics:
  regex:
    - 'step (?P<step>\\d+)'
    - ' loss (?P<loss>\\S+)'
    - 'val_loss (?P<val_loss>\\S+)'
  evaluation: 'val_loss'
"""
EXPERIMENT = """\
name: rates
command: python train.py {learning_rate} {global_batch_size} {seed}
launcher: none
measure: {kind: convergence, max_samples: 1600, evaluate_every_samples: 80}
METRICS
job: {target: val_loss <= 0.1}
gpus: 1
global_batch_size: [8, 16]
local_batch_size: 8
learning_rate: {base: [0.2, 0.7], at_batch: 8, rule: none}
seed: [0, 1]
site: {device_type: cpu, gpus_per_node: 2}
""".replace("METRICS\n", METRICS)
TUNED = EXPERIMENT.replace("[0.2, 0.7]", "0.2").replace("rule: none", "rule: tuned")
SEARCH = """\
name: rates
command: python train.py {learning_rate} {global_batch_size}
launcher: none
measure: {kind: convergence, max_samples: 1600}
METRICS
job: {samples: 1600}
gpus: 1
local_batch_size: 8
tune: {learning_rate: [0.1, 0.2, 0.4, 0.6, 0.8, 1.6]}
objective: val_loss
site: {device_type: cpu, gpus_per_node: 2}
""".replace("METRICS\n", METRICS)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        pytest.param(TUNED, "status", id="rule: tuned"),
        pytest.param(EXPERIMENT, "status", id="axes", marks=pytest.mark.repetition),
        pytest.param(SEARCH, "recommend", id="tune", marks=pytest.mark.repetition),
    ],
)
def test_every_trial_counts_once_and_diverged_runs_are_counted(
    text: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm: WarmInterpreter,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    Path("e.yaml").write_text(text)
    directory = Path("runs/rates")

    sweep = ("sweep", "e.yaml", "--yes")
    first = subprocess.Popen([*SCALELAB, *sweep], stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + PATIENCE_S
    while first.poll() is None and time.monotonic() < deadline_s:
        if (directory / "run.json").exists() and RunReader.open(directory).rows():
            break
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(PATIENCE_S) == 130
    assert warm(*sweep, timeout_s=PATIENCE_S).returncode == 0

    run = load(directory)
    rows = run.observations[run.observations["outcome"] != "cancelled"]
    assert rows["trial_id"].is_unique
    assert set(rows["outcome"]) <= {"completed", "target_not_reached"}
    assert run.status().num_missing == 0

    diverged = rows[rows["diverged"]]
    assert 0 < len(diverged) < len(rows)
    assert diverged["learning_rate"].min() > 0.5
    assert set(diverged["outcome"]) == {"target_not_reached"}
    assert diverged["final_metric"].isna().all()
    shown = warm(command, str(directory), "--json")
    assert f"{len(diverged)} of {len(rows)} runs diverged" in str(
        json.loads(shown.stdout)
    )

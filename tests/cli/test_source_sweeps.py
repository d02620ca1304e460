"""Sweeps whose trials come from a source that another distribution brings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import EMULATED
from real_sweeps import Sweep, attempts, rows
from toy_sources import write_distribution
from warm_interpreter import WarmInterpreter

pytestmark = pytest.mark.slow
EXPERIMENT = """\
name: small
workload:
  name: emulated
  fixed_time_s: 15.0e-3
  sample_time_s: 0.5e-3
  min_samples: 2000
  critical_batch_size: 100
measure:
  kind: [throughput, convergence]
  warmup_steps: 1
  steps: 5
  repeats: 1
  canary_every: 0
  evaluate_every_samples: 160
  max_samples: 8000
job: {target: val_acc >= 0.95}
gpus: [1, 2]
global_batch_size: [8, 16]
source: {name: impatient, batch: 8}
site: {device_type: cpu, gpus_per_node: 2}
"""
SCRIPT = """\
import json, os, sys, time
batch = int(sys.argv[1])
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 61):
        time.sleep(0.1)
        line = {"step": step, "samples": step * batch, "val_acc": step / 60}
        metrics.write(json.dumps(line) + "\\n")
"""
COMMAND = """\
name: small
command: python train.py {global_batch_size}
launcher: none
code: {snapshot: [train.py]}
measure: {kind: convergence, max_samples: 100000, evaluate_every_samples: 16}
job: {target: val_acc >= 0.9}
gpus: 1
global_batch_size: [8, 16]
source: {name: impatient, batch: 8}
site: {device_type: cpu, gpus_per_node: 2}
"""
PROGRAMS = """\
name: small
program:
  - {name: plain, command: "python train.py {global_batch_size}"}
  - {name: quick, command: "python -S train.py {global_batch_size}"}
launcher: none
code: {snapshot: [train.py]}
measure: {long_trial: none, warmup_steps: 1, steps: 4, repeats: 1, canary_every: 0}
job: {samples: 1000}
gpus: 1
global_batch_size: 8
source: {name: one_by_one, program: quik}
site: {device_type: cpu, gpus_per_node: 1}
"""


@pytest.fixture(autouse=True)
def toy_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(write_distribution(tmp_path / "site")), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


@pytest.fixture
def say(
    warm: WarmInterpreter, environment: dict[str, str], here: Path
) -> Callable[..., Any] | str:
    """Return a function that runs a command of ScaleLab and returns what it prints."""

    def say(*arguments: str) -> str:
        ended = warm(*arguments, environment=environment)
        ended.check_returncode()
        return ended.stdout

    return say


@pytest.mark.timeout(300)
def test_a_trial_that_its_source_ends_is_measured_up_to_then(
    sweep: Sweep, say: Callable[..., Any], here: Path
) -> None:
    first = sweep(EXPERIMENT)
    assert first.returncode == 0, first
    assert "Ended early by their source (pruned): 1 trial." in first.stderr
    found = {
        row["global_batch_size"]: row for row in rows() if row["kind"] != "throughput"
    }
    pruned, completed = found[8], found[16]
    assert (pruned["outcome"], completed["outcome"]) == ("pruned", "completed")
    assert "Ended early by source=impatient at step " in str(pruned["reason"])
    assert "val_acc=0." in str(pruned["reason"])
    assert 0 < pruned["num_samples"] < 2160
    assert pruned["num_samples"] == 8 * (pruned["num_steps"] + 1)
    assert pruned["step_time_s"] == pytest.approx(0.019, rel=0.5)
    assert pruned["reached_target"] is False
    assert 0.3 <= pruned["final_metric"] < 0.95
    assert pruned["schedule"] == completed["schedule"]

    again = sweep(EXPERIMENT)
    assert again.returncode == 0
    assert again.stderr.startswith("All 6 trials of ")
    assert len(attempts()) == 6

    status = say("status", "runs/small")
    assert "     1  pruned\n" in status
    assert "Not run yet" not in status
    answer = " ".join(say("recommend", "runs/small", "--explain").split())
    assert "Ended early by their source (pruned): 1 attempt; what they" in answer


@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_command_that_its_source_ends_is_measured_up_to_then(
    sweep: Sweep, here: Path
) -> None:
    Path("train.py").write_text(SCRIPT)
    sweep(COMMAND)
    pruned, completed = sorted(rows(), key=lambda row: row["global_batch_size"])
    assert (pruned["outcome"], completed["outcome"]) == ("pruned", "completed")
    assert 8 * 18 <= pruned["num_samples"] < 8 * 54
    assert 0.3 <= pruned["final_metric"] < 0.9
    assert pruned["reached_target"] is False
    assert sweep(COMMAND).stderr.startswith("All 2 trials of ")


@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_source_that_fails_ends_the_sweep_and_is_named(sweep: Sweep) -> None:
    failing = EXPERIMENT.replace("batch: 8", "batch: 8, fails: true")
    ended = sweep(failing)
    assert ended.returncode == 2, ended
    assert ended.stderr.splitlines()[-1].startswith(
        "Error: source=impatient failed in tell_progress: KeyError: 'val_acc'."
    )
    assert {row["outcome"] for row in rows()} == {"completed", "cancelled"}


@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_trial_of_an_unknown_program_ends_the_sweep_and_loses_nothing(
    sweep: Sweep, here: Path
) -> None:
    Path("train.py").write_text(SCRIPT)
    ended = sweep(PROGRAMS)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    said = " ".join(ended.stderr.split())
    assert "Error: source=one_by_one proposed a trial with program='quik'." in said
    assert "Did you mean 'quick'? Valid: plain, quick. Correct the source" in said
    assert [row["options.program"] for row in rows()] == ["plain"]

    again = sweep(PROGRAMS.replace(", program: quik", ""))
    assert again.returncode == 0, again
    assert [row["options.program"] for row in rows()] == ["plain", "quick"]
    assert len(attempts()) == 2


@pytest.mark.timeout(300)
@pytest.mark.repetition
def test_a_source_that_does_not_know_its_trials_beforehand(
    sweep: Sweep, say: Callable[..., Any], here: Path
) -> None:
    text = EMULATED.replace("[1, 2]", "[1, 2, 4]").replace(
        "gpus_per_node: 2", "gpus_per_node: 4"
    )
    text += "source: doubling\n"
    Path("experiment.yaml").write_text(text)
    planned = say("plan", "experiment.yaml")
    assert "source=doubling chooses which trials run, of 12 trials or others" in planned
    assert "the source of trials does not say" in planned

    first = sweep(text)
    assert first.returncode == 0, first
    where = f"the trials that source=doubling proposes into {here}/runs/small."
    assert first.stderr.splitlines()[0] == f"Running {where}"
    sizes = [row["world_size"] for row in rows()]
    assert sizes == [1, 2, 4][: len(sizes)]
    assert len(sizes) >= 2
    again = sweep(text)
    assert (
        again.stderr.splitlines()[0] == f"Continuing ({len(sizes)} trials done) {where}"
    )
    assert len(attempts()) == len(sizes)
    assert "Not run yet" not in say("status", "runs/small")


def test_parameters_of_a_source_are_checked_before_anything_runs(
    sweep: Sweep, here: Path
) -> None:
    wrong = sweep(EXPERIMENT.replace("batch: 8", "size: 8"))
    assert wrong.returncode == 2
    assert "source=impatient cannot be made with ['size']: missing" in wrong.stderr
    unknown = sweep(EXPERIMENT.replace("impatient", "impatiens"))
    assert unknown.returncode == 2
    assert "source='impatiens' is not known. Did you mean 'impatient'?" in (
        unknown.stderr
    )
    assert not Path("runs").exists()

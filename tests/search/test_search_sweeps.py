"""Searches as they are swept: real ranks, drivers that die, Optuna reading beside."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from sentences import refused
from warm_interpreter import WarmInterpreter

from scalelab.experiment.spec import Experiment
from scalelab.records.store import RunReader
from scalelab.search.journal import JOURNAL
from scalelab.session import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 120
SCALELAB = [sys.executable, "-m", "scalelab"]
DIGITS = """\
name: digits
workload: {name: digits_mlp, hidden_sizes: [32]}
measure: {kind: convergence}
job: {epochs: 12, samples_per_epoch: 1437}
gpus: 1
local_batch_size: 16
tune:
  learning_rate: {log: [1.0e-4, 1.0]}
  weight_decay: {log: [1.0e-6, 1.0e-2]}
  dropout: {float: [0.0, 0.6]}
objective: val_acc
trials: 24
site: {device_type: cpu, gpus_per_node: 2}
"""
SCRIPT = """\
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--wd", type=float)
parser.add_argument("--act")
given = parser.parse_args()
print("given", given.lr, given.wd, given.act, flush=True)
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 21):
        loss = abs(given.lr - 0.1) + given.wd + 1 / step
        line = {"step": step, "samples": 8 * step, "val_loss": loss}
        metrics.write(json.dumps(line) + "\\n")
        time.sleep(0.12)
"""
COMMAND = """\
name: command
command: python train.py --lr {learning_rate} --wd {weight_decay} --act {act}
launcher: none
code: {snapshot: [train.py]}
measure: {kind: convergence, warmup_steps: 1, max_samples: 160}
gpus: 1
local_batch_size: 8
job: {samples: 160}
tune:
  learning_rate: {log: [0.001, 1]}
  weight_decay: {float: [0, 0.1]}
  act: [relu, gelu]
objective: val_loss
trials: 8
site: {device_type: cpu, nodes: 2, gpus_per_node: 1}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study_of_copy(run: Path) -> optuna.Study:
    copy = run.with_suffix(".journal")
    shutil.copy(run / JOURNAL, copy)
    storage = JournalStorage(JournalFileBackend(str(copy)))
    return optuna.load_study(study_name=None, storage=storage)


def states(study: optuna.Study) -> Counter[str]:
    return Counter(trial.state.name for trial in study.trials)


def measured(run: Path) -> list[tuple[str, int]]:
    if not (run / "run.json").exists():
        return []
    reader = RunReader.open(run)
    rows = reader.finished(reader.rows())
    return [(row["trial_id"], row["attempt"]) for row in rows]


@pytest.mark.parametrize(
    ("text", "num_kills"),
    [
        (COMMAND.replace("trials: 8", "trials: 16"), 2),
        *(pytest.param(DIGITS, num, marks=pytest.mark.repetition) for num in (2, 4)),
    ],
    ids=["command-2", "digits-2", "digits-4"],
)
def test_a_search_that_is_killed_again_and_again_has_each_trial_once(
    home: Path, text: str, num_kills: int, warm: WarmInterpreter
) -> None:
    (home / "train.py").write_text(SCRIPT)
    (home / "searched.yaml").write_text(text)
    experiment = Experiment.from_text(text, directory=home)
    run, generator = home / "runs" / experiment.name, random.Random(20261127)
    finished: list[tuple[str, int]] = []
    for number in range(num_kills):
        driver = subprocess.Popen(
            [*SCALELAB, "sweep", "searched.yaml"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wanted = len(finished) + generator.randrange(1, 5)
        deadline = time.monotonic() + PATIENCE_S
        while len(measured(run)) < wanted:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.12)
        study = study_of_copy(run)  # while it runs
        assert states(study)["RUNNING"] <= 2
        time.sleep(generator.random())
        driver.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        driver.wait(PATIENCE_S)
        assert {*finished} <= {*measured(run)}
        finished = measured(run)

    ended = warm("sweep", "searched.yaml")
    assert ended.returncode == 0, ended.stderr
    assert {*finished} <= {*measured(run)}  # none of them ran again
    rows = {row["trial_id"]: row for row in RunReader.open(run).rows()}
    study = study_of_copy(run)
    by_id = {trial.user_attrs["trial_id"]: trial for trial in study.trials}
    assert len(study.trials) == len(by_id) == experiment.num_trials
    assert by_id.keys() == {trial_id for trial_id, _ in measured(run)}
    outcomes = Counter(rows[trial_id]["outcome"] for trial_id in by_id)
    assert states(study)["PRUNED"] == outcomes["pruned"] > 0
    assert states(study)["COMPLETE"] == outcomes["completed"]
    for trial_id, trial in by_id.items():
        assert rows[trial_id]["options.weight_decay"] == trial.params["weight_decay"]
        assert rows[trial_id]["learning_rate"] == trial.params["learning_rate"]

    found = load(run).search_result
    assert found is not None
    assert found.best[0].trial_id == study.best_trial.user_attrs["trial_id"]
    assert found.sentences[1] in ended.stdout
    for command in ("status", "recommend"):
        said = warm(command, str(run))
        assert said.returncode == 0
        assert all(sentence in said.stdout for sentence in found.sentences)
    answer = json.loads(warm("recommend", str(run), "--json").stdout)
    assert answer["facts"] == found.to_json()
    assert [*found.sentences] == answer["text"]

    with refused("question_of_search"):
        load(run).recommend()
    page = (run / "report.html").read_text()
    assert found.best[0].trial_id in page
    assert "No recommendation" in page

    (run / JOURNAL).unlink()  # made anew, intermediate values too
    again = load(run).study
    assert states(again) == states(study)
    pruned = [t for t in again.trials if t.state.name == "PRUNED"]
    assert all(trial.intermediate_values for trial in pruned)
    assert again.best_value == study.best_value


def test_a_command_is_searched_on_two_nodes(home: Path, warm: WarmInterpreter) -> None:
    (home / "train.py").write_text(SCRIPT)
    (home / "command.yaml").write_text(COMMAND)
    plan = warm("plan", "command.yaml")
    assert "the settings of 8 trials, up to 2 trials at once, for val" in plan.stdout
    assert "  act: relu, gelu" in plan.stdout
    swept = warm("sweep", "command.yaml")
    assert swept.returncode == 0, swept.stderr

    run = home / "runs" / "command"
    study = load(run).study
    assert len(study.trials) == 8
    specs = [json.loads(p.read_text()) for p in run.glob("trials/*/*/attempt.json")]
    assert len({spec["placement"]["shares"][0]["node"] for spec in specs}) == 2
    for trial in study.trials:
        (log,) = (run / "trials" / trial.user_attrs["trial_id"]).glob("*/rank-0.log")
        rate, decay, act = (
            trial.params[name] for name in ("learning_rate", "weight_decay", "act")
        )
        assert f"given {rate} {decay} {act}" in log.read_text()
    losses = [t.value for t in study.trials if t.state.name == "COMPLETE"]
    assert study.best_value == min(losses)


def test_a_search_refuses_a_question_of_devices(
    home: Path, warm: WarmInterpreter
) -> None:
    (home / "train.py").write_text(SCRIPT)
    text = COMMAND.replace("trials: 8", "trials: 2\nsampler: random")
    (home / "command.yaml").write_text(text)
    assert warm("sweep", "command.yaml").returncode == 0
    asked = warm("recommend", "runs/command", "--max-time", "4h")
    assert asked.returncode == 2
    assert "answers no question of devices, times or prices" in asked.stderr

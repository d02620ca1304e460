"""A row of each kind from an installed distribution works as a built-in one does."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_programs import FakePrograms

import scalelab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Run = Callable[..., subprocess.CompletedProcess[str]]

SITE = "site: {device_type: cpu, gpus_per_node: 2}\n"
PAIRED = f"""
name: paired
workload: digits_mlp
parallelism: [ddp, paired]
gpus: 2
local_batch_size: 16
measure: {{long_trial: none, steps: 20, repeats: 1, canary_every: 0}}
{SITE}"""
LAUNCHED = f"""
name: launched
command: python train.py
launcher: toyrun
metrics: {{regex: 'step (?P<step>\\d+) samples (?P<samples>\\d+)'}}
gpus: 2
local_batch_size: 16
measure: {{long_trial: none, steps: 20, repeats: 1, canary_every: 0}}
{SITE}"""
SCRIPT = """
import os, socket, time
rank, size = int(os.environ["TOY_RANK"]), int(os.environ["TOY_SIZE"])
host, port = os.environ["TOY_MEET"].rsplit(":", 1)
if rank == 0:
    listener = socket.create_server((host, int(port)))
    held = [listener.accept()[0] for _ in range(size - 1)]
else:
    held = socket.socket()
    while held.connect_ex((host, int(port))):
        held.close()
        time.sleep(0.01)
        held = socket.socket()
for step in range(1, 200):
    time.sleep(0.005)
    if rank == 0:
        print(f"step {step} samples {16 * size * step}", flush=True)
"""
CUT_OFF = f"""
name: cut-off
source: {{name: cutoff, metric: val_acc, floor: 0.5, step: 20}}
workload: digits_mlp
gpus: 1
local_batch_size: 32
learning_rate: {{base: 0.1, at_batch: 1000000000, rule: [none, linear]}}
measure: {{kind: convergence, max_epochs: 4000}}
job: {{target: val_acc >= 0.9, epochs: 4000, samples_per_epoch: 1437}}
{SITE}"""
PLAIN = f"""
name: plain
workload: {{name: toy/sleep, sample_time_s: 1.0e-3}}
gpus: [1, 2]
local_batch_size: 4
measure: {{long_trial: none, steps: 20, repeats: 1, canary_every: 0}}
{SITE}"""
QUEUED = """
name: queued
workload: digits_mlp
gpus: 4
local_batch_size: 16
"""
HOSTS = '{"num_nodes": 3, "cores": 64, "gpus": 4, "gpu_type": "a100"}'
TABLE = "gpus,nodes,local_batch_size,step_time_s\n" + "".join(
    f"{n},1,32,{0.1 + 0.01 * n}\n" for n in (1, 2, 4, 8)
)


def test_the_rows_keep_their_contracts(run_outside: Run) -> None:
    contracts = str(Path(__file__).with_name("toy") / "contracts.py")
    ended = run_outside("pytest", "-q", "-p", "no:cacheprovider", "-c", "", contracts)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def swept(run_outside: Run, here: Path, experiment: str) -> pd.DataFrame:
    """Sweep an experiment for real and return its observations."""
    (here / "experiment.yaml").write_text(experiment)
    ended = run_outside("scalelab", "sweep", "experiment.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (directory,) = (here / "runs").iterdir()
    return scalelab.load(directory).observations.set_index("trial_id", drop=False)


def test_a_strategy_is_swept(run_outside: Run, tmp_path: Path) -> None:
    rows = swept(run_outside, tmp_path, PAIRED).set_index("parallelism")
    assert set(rows["outcome"]) == {"completed"}
    assert dict(rows["data_parallel_size"]) == {"ddp": 2, "paired": 1}
    assert dict(rows["global_batch_size"]) == {"ddp": 32, "paired": 16}
    assert rows["num_samples"]["ddp"] == 2 * rows["num_samples"]["paired"]


def test_a_strategy_refuses_what_it_cannot_divide(
    run_outside: Run, tmp_path: Path
) -> None:
    (tmp_path / "experiment.yaml").write_text(PAIRED.replace("gpus: 2", "gpus: 1"))
    ended = run_outside("scalelab", "plan", "experiment.yaml")
    assert ended.returncode == 2
    needs = "parallelism=paired needs an even number of devices, not 1. Use 2, 4, ..."
    assert needs in " ".join(ended.stderr.split())


def test_an_environment_without_the_distribution_names_what_it_knows(
    tmp_path: Path,
) -> None:
    from scalelab.cli import main

    (tmp_path / "experiment.yaml").write_text(PAIRED)
    assert main.run(["plan", str(tmp_path / "experiment.yaml")]) == 2


@pytest.mark.repetition
def test_a_launcher_is_swept_and_starts_the_job(
    run_outside: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    rows = swept(run_outside, tmp_path, LAUNCHED)
    assert list(rows["outcome"]) == ["completed"]
    assert list(rows["world_size"]) == [2]


def test_a_batch_system_renders_scripts_and_is_driven(
    run_outside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(programs.folder), prepend=os.pathsep)
    programs.says("toyhosts", HOSTS)
    programs.says("toystat", "{}")
    programs.says("toykill")
    submitted = programs.says("toysub", errors="lane fast is closed", status=1)
    written = run_outside(*"scalelab site init ./toyland.yaml --scheduler toy".split())
    assert written.returncode == 0, written.stderr
    (tmp_path / "experiment.yaml").write_text(QUEUED)
    planned = run_outside(*"scalelab plan experiment.yaml --site toyland.yaml".split())
    assert planned.returncode == 0, planned.stderr
    assert "#TOY -lane fast" in planned.stdout
    assert "#TOY -hosts 1" in planned.stdout
    swept = run_outside(*"scalelab sweep experiment.yaml --site toyland.yaml".split())
    assert swept.returncode == 3
    assert "lane fast is closed" in swept.stderr
    assert submitted.exists()


def test_a_resource_limits_an_answer(run_outside: Run, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    assert run_outside("scalelab", "import", "table.csv").returncode == 0
    ask = ("scalelab", "recommend", "runs/table", "--samples", "10000000", "--json")
    answers: list[dict[str, Any]] = []
    for limit in ("100000l", "5l"):
        ended = run_outside(*ask, "--max-water", limit)
        assert ended.returncode in (0, 4), ended.stderr
        answers.append(json.loads(ended.stdout))
    assert [answer["meets_constraints"] for answer in answers] == [True, False]
    assert '"water_l": {' in ended.stdout
    assert "--max-water 20l" in run_outside("scalelab", "recommend", "--help").stdout
    said = run_outside(*ask[:-1], "--max-water", "100000l").stdout
    assert "Chance of meeting < 100,000 l (of training steps):" in " ".join(
        said.split()
    )


@pytest.mark.repetition
def test_a_trainer_is_swept_on_plain_processes(
    run_outside: Run, tmp_path: Path
) -> None:
    rows = swept(run_outside, tmp_path, PLAIN).set_index("world_size")
    assert set(rows["outcome"]) == {"completed"}
    assert set(rows["workload"]) == {"toy/sleep"}
    assert dict(rows["num_samples"]) == {1: 80, 2: 160}
    assert (rows["step_time_s"] >= 4e-3).all()
    wrong = PLAIN.replace("toy/sleep", "toy/nap")
    (tmp_path / "wrong.yaml").write_text(wrong)
    ended = run_outside("scalelab", "plan", "wrong.yaml")
    assert ended.returncode == 2
    assert "Valid: sleep" in " ".join(ended.stderr.split())


def test_what_is_installed_is_listed(run_outside: Run) -> None:
    ended = run_outside("scalelab", "doctor", "--kinds")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "scalelab_toy." in line]
    kinds = ["strategy", "launcher", "batch", "resource", "source", "trainer"]
    assert [line.split()[1] for line in lines] == kinds


@pytest.mark.repetition
def test_a_source_proposes_and_prunes(run_outside: Run, tmp_path: Path) -> None:
    rows = swept(run_outside, tmp_path, CUT_OFF)
    assert dict(rows.set_index("lr_rule")["outcome"]) == {
        "none": "completed",
        "linear": "pruned",
    }
    again = run_outside("scalelab", "sweep", "experiment.yaml")
    assert again.returncode == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert len(scalelab.load(directory).observations) == 2

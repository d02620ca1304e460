"""Without torch commands are swept, and runs of every strategy are answered alike."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_runs import EMULATED, measured_run

import scalelab
from scalelab.cli import main
from scalelab.errors import install_command

# No finder finds torch, as where it is not installed.
SITE_CUSTOMIZE = """
import sys
from importlib.machinery import PathFinder


class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return None
        return PathFinder.find_spec(name, path, target)


sys.meta_path = [WithoutTorch if f is PathFinder else f for f in sys.meta_path]
"""
PROGRAM = """
import time
for step in range(1, 400):
    time.sleep(0.002)
    print(f"step {step} samples {8 * step}", flush=True)
"""
COMMANDS = """
name: commands
program:
- {name: alone, command: python train.py, launcher: none}
- {name: each, command: python train.py, launcher: per_node}
- {name: mpi, command: python train.py, launcher: mpirun}
metrics: {regex: 'step (?P<step>[0-9]+) samples (?P<samples>[0-9]+)'}
env: {OMPI_ALLOW_RUN_AS_ROOT: 1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: 1}
measure: {long_trial: none, warmup_steps: 1, steps: 10, repeats: 1, canary_every: 0}
gpus: 1
local_batch_size: 8
site: {device_type: cpu, gpus_per_node: 1}
"""
EVERY_STRATEGY = """
name: spread
workload: {name: digits_mlp, hidden_sizes: [16, 16, 16]}
measure: {long_trial: none, warmup_steps: 1, steps: 5, repeats: 2}
job: {samples: 100000}
gpus: [2, 4]
local_batch_size: 8
parallelism: [ddp, fsdp, local_sgd, parameter_server, pipeline]
options: {averaging_period: 4, split_size: 4, stages: 2}
site: {device_type: cpu, gpus_per_node: 4}
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def scalelab_without_torch(tmp_path: Path) -> Run:
    """Run a command line in a folder, where torch cannot be imported."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(SITE_CUSTOMIZE)

    def run(*words: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scalelab", *words],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(blocked)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.mark.slow
def test_commands_are_swept_without_torch(
    tmp_path: Path, scalelab_without_torch: Run, require_program: Callable[[str], str]
) -> None:
    require_program("mpirun")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "experiment.yaml").write_text(COMMANDS)
    ended = scalelab_without_torch("sweep", "experiment.yaml", "--skip-check")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = scalelab.load(tmp_path / "runs" / "commands").observations
    assert dict(rows.set_index("options.program")["outcome"]) == dict.fromkeys(
        ("alone", "each", "mpi"), "completed"
    )


def test_what_needs_torch_says_so_without_it(
    tmp_path: Path, scalelab_without_torch: Run
) -> None:
    (tmp_path / "experiment.yaml").write_text(EMULATED)
    refused = scalelab_without_torch("sweep", "experiment.yaml")
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "workload=emulated needs packages that are not installed." in said
    assert install_command("train") in said


@pytest.mark.slow
def test_runs_of_every_strategy_get_the_same_answer_and_report_without_torch(
    tmp_path: Path,
    scalelab_without_torch: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, there = tmp_path / "with", tmp_path / "without"
    here.mkdir()
    measured_run(here / "run", EVERY_STRATEGY)
    shutil.copytree(here, there)
    monkeypatch.chdir(here)
    assert main.run(["recommend", "run", "--json"]) == 0
    answer = capsys.readouterr().out
    for strategy in ("ddp", "fsdp", "local_sgd", "parameter_server", "pipeline"):
        assert f'"{strategy}"' in answer
    alike = scalelab_without_torch("recommend", "run", "--json", cwd=there)
    assert (alike.stdout, alike.returncode) == (answer, 0), alike.stderr
    assert main.run(["report", "run"]) == 0
    assert scalelab_without_torch("report", "run", cwd=there).returncode == 0
    pages = [(each / "run" / "report.html").read_text() for each in (here, there)]
    assert pages[0] == pages[1]

"""One network in several frameworks: the same numbers, and one that cannot start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from swept_recipes import ENVIRONMENTS, PATIENCE_S, ROOT, Recorded, logs, recorded

from scalelab.training.workloads.cifar10 import binary_records

pytestmark = [pytest.mark.slow, pytest.mark.recipes, pytest.mark.timeout(600)]
NAME = "frameworks_resnet44"
SHORT = {"depth": 8, "pictures": 96, "test_pictures": 16, "epochs": 1}
# Each adds up a convolution in an order of its own, and training makes that more.
AT_FIRST, IN_THE_END = 1e-3, 0.05


def test_the_frameworks_train_the_same_network(tmp_path: Path) -> None:
    names = ["torch", *(name for name in asked() if installed(name))]
    if len(names) == 1:
        pytest.skip("no framework is installed: make test-recipes RECIPES='jax keras'")
    values = shortened(names)
    sweep(
        tmp_path, values, returns=1 if "lacks-its-framework" in programs(values) else 0
    )
    found = {
        (trial.row["options.program"], trial.row["world_size"]): trial
        for trial in recorded(tmp_path)
    }
    for size in (1, 2):
        trials = [found[name, size] for name in names]
        # An evaluation stands in the stream at the step that it follows.
        losses = [list(trial.steps()["loss"].dropna()) for trial in trials]
        for trial, of_trial in zip(trials, losses, strict=True):
            assert_trained(trial)
            assert len(of_trial) == 96 // (16 * size)
            assert of_trial[0] == pytest.approx(losses[0][0], rel=AT_FIRST)
            assert of_trial[-1] == pytest.approx(losses[0][-1], rel=IN_THE_END)
    for (name, _), trial in found.items():
        if name == "lacks-its-framework":
            assert trial.row["outcome"] == "failed"
            assert "No module named" in trial.printed()


def assert_trained(trial: Recorded) -> None:
    """It trained to its end, and was evaluated; nothing reaches the target so soon."""
    assert trial.row["outcome"] == "target_not_reached", trial.row
    assert 0 <= trial.row["final_metric"] <= 1
    assert trial.row["throughput_samples_per_s"] > 0


def asked() -> list[str]:
    frameworks = "keras jax tensorflow"
    asked = os.environ.get("SCALELAB_RECIPES", frameworks).split()
    return [name for name in frameworks.split() if name in asked]


def installed(environment: str) -> bool:
    return (ENVIRONMENTS / environment / ".installed").exists()


def programs(values: Mapping[str, Any]) -> list[str]:
    return [program["name"] for program in values["program"]]


def shortened(names: list[str]) -> dict[str, Any]:
    """Return the experiment with these programs, and one whose Python lacks JAX."""
    text = (ROOT / "experiments" / f"{NAME}.yaml").read_text()
    values: dict[str, Any] = yaml.safe_load(text)
    every = {program["name"]: program for program in values["program"]}
    values["program"] = [every[name] for name in names]
    if "keras" in names:
        command = every["jax"]["command"].replace("/jax/bin/", "/keras/bin/")
        lacking = {**every["jax"], "name": "lacks-its-framework", "command": command}
        values["program"].append(lacking)
    values["options"] = SHORT
    values["job"] |= {"epochs": 1, "samples_per_epoch": 96, "target": "val_acc >= 1"}
    values["local_batch_size"] = 16
    values["measure"]["warmup_steps"] = 1
    return values


def sweep(home: Path, values: Mapping[str, Any], *, returns: int) -> None:
    """Sweep it in a folder laid out as the repository, over pictures of noise."""
    (home / ".recipes").symlink_to(ENVIRONMENTS)
    shutil.copytree(ROOT / "experiments" / NAME, home / "experiments" / NAME)
    (home / f"experiments/{NAME}.yaml").write_text(yaml.safe_dump(values))
    write_pictures(home / "data/cifar10")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(home / "config")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scalelab",
            "sweep",
            "--yes",
            f"experiments/{NAME}.yaml",
        ],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == returns, done.stdout + done.stderr + logs(home)


def write_pictures(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    for name in (*batches, "test_batch"):
        pixels = rng.integers(256, size=(20, 1024, 3), dtype=np.uint8)
        labels = rng.integers(10, size=20).tolist()
        (folder / f"{name}.bin").write_bytes(binary_records(pixels, labels))

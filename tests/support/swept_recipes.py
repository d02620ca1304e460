"""Recipes swept as users sweep them, each with the packages of its environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from promised import skip_or_fail

import scalelab

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "experiments/recipes"
ENVIRONMENTS = ROOT / ".recipes"
WITNESSES = ROOT / "tests/recipes/witnesses"
PATIENCE_S = 560
WITNESSED = "output/witness.jsonl"
WARMUP, STEPS = 10, 60


@dataclass(frozen=True)
class Recorded:
    """What ScaleLab recorded of a trial, beside what the program said itself."""

    row: dict[str, Any]
    directory: Path

    def steps(self) -> pd.DataFrame:
        """Return the steps as they were read, by number."""
        return _by_step(self.directory / "stream.jsonl")

    def witnessed(self) -> pd.DataFrame:
        """Return the steps as the framework counts and times them, by number."""
        return _by_step(self.directory / WITNESSED)

    def witnessed_losses(self) -> list[float]:
        """Return every loss that the framework logged."""
        return [line["loss"] for line in _lines(self.directory / WITNESSED)]

    def printed(self) -> str:
        return (self.directory / "rank-0.log").read_text(errors="replace")


def _by_step(path: Path) -> pd.DataFrame:
    lines = [line for line in _lines(path) if "step" in line]
    return pd.DataFrame(lines).set_index("step")


def _lines(path: Path) -> list[dict[str, Any]]:
    # The program may have been ended as it wrote the last one.
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


SweepRecipe = Callable[..., list[Recorded]]


@pytest.fixture
def sweep_recipe(tmp_path: Path) -> Iterator[SweepRecipe]:
    """Return a function that sweeps a recipe on one and on two ranks.

    A witness is started in the place of the recipe's script, which it runs unchanged
    with a callback of the framework added to it.
    """
    drivers: list[subprocess.Popen[str]] = []

    def sweep(name: str, environment: str, witness: str = "") -> list[Recorded]:
        python = interpreter(environment)
        home = tmp_path / name
        shutil.copytree(RECIPES / name, home)
        values = _shorten(home / "experiment.yaml", witness)
        if values.get("launcher") == "mpirun" and shutil.which("mpirun") is None:
            skip_or_fail("mpirun is not installed (apt install openmpi-bin)")
        command = [python, "-m", "scalelab", "sweep", "--yes", "experiment.yaml"]
        driver = subprocess.Popen(
            command,
            cwd=home,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        drivers.append(driver)
        said, _ = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 0, said + logs(home)
        return [*recorded(home)]

    yield sweep
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def interpreter(environment: str) -> Path:
    """Return the Python of an environment, or skip the test."""
    folder = ENVIRONMENTS / environment
    asked = os.environ.get("SCALELAB_RECIPES", environment).split()
    if environment not in asked:
        pytest.skip(f"not asked for: make test-recipes RECIPES={environment}")
    if not (folder / ".installed").exists():
        skip_or_fail(f"not installed: make test-recipes RECIPES={environment}")
    return folder / "bin/python"


def _shorten(file: Path, witness: str) -> dict[str, Any]:
    """Measure each trial once, have a witness beside the script; return the keys."""
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    values["measure"] = {
        "long_trial": "none",
        "warmup_steps": WARMUP,
        "steps": STEPS,
        "repeats": 1,
        "relative_precision": 1e-6,
    }
    if witness:
        shutil.copy(WITNESSES / witness, file.parent / witness)
        values["command"] = values["command"].replace("train.py", f"{witness} train.py")
        values["code"] = {"snapshot": ["train.py", witness]}
    file.write_text(yaml.safe_dump(values))
    return values


def recorded(home: Path) -> Iterator[Recorded]:
    """Yield the attempts of the one run below a directory, fewest ranks first."""
    (run,) = (home / "runs").iterdir()
    rows = scalelab.load(run).observations.sort_values("world_size")
    for row in rows.to_dict("records"):
        number = f"{row['attempt']:03d}"
        yield Recorded(row, run / "trials" / str(row["trial_id"]) / number)


def logs(home: Path) -> str:
    """Return the ends of the logs of all ranks."""
    found = sorted(home.glob("runs/*/trials/*/*/rank-*.log"))
    return "".join(
        f"\n{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in found
    )

"""The files of recipes are right, whether or not their frameworks are installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from swept_recipes import ENVIRONMENTS, RECIPES, ROOT

from scalelab.experiment.spec import Experiment

FILES = sorted([*RECIPES.glob("*.yaml"), *RECIPES.glob("*/experiment.yaml")])
SCRIPTS = sorted(RECIPES.glob("*/*.py"))
PAGE = (ROOT / "docs/recipes.md").read_text()
# Installed once, for the project; another torchvision would replace torch.
OF_THE_PROJECT = ("torch", "torchvision", "xgboost")


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_a_recipe_is_an_experiment_that_the_page_names(file: Path) -> None:
    experiment = Experiment.from_file(file)
    assert experiment.command is not None
    assert f"../{file.relative_to(ROOT)}" in PAGE


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.parent.name)
def test_scripts_do_not_know_scalelab(script: Path) -> None:
    imports = re.findall(r"^\s*(?:import|from) (\w+)", script.read_text(), re.M)
    assert imports
    assert "scalelab" not in imports
    assert "SCALELAB" not in script.read_text()


@pytest.mark.recipes
def test_environments_bring_no_torch_of_their_own() -> None:
    environments = [file.parent for file in ENVIRONMENTS.glob("*/.installed")]
    if not environments:
        pytest.skip("no environment is installed: make test-recipes")
    brought = [
        package
        for folder in environments
        for name in OF_THE_PROJECT
        for package in folder.glob(f"lib/python*/site-packages/{name}")
    ]
    assert not brought

"""The page of workloads names the built-in ones; what it shows of others can be run."""

import re
from pathlib import Path

import pytest
from warm_interpreter import WarmInterpreter

import scalelab
from scalelab.experiment.spec import Experiment
from scalelab.training.trainer import TRAINER
from scalelab.training.workloads.introspection import names_of_built_in
from scalelab.training.workloads.table import BUILT_IN_WORKLOADS

PAGE = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text()
FIRST, *REST = re.split(r"^## ", PAGE, flags=re.M)
SECTIONS = {part.partition("\n")[0]: part for part in REST}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_workload_has_a_row_and_a_section() -> None:
    assert set(SECTIONS) == set(BUILT_IN_WORKLOADS)
    assert {*BUILT_IN_WORKLOADS, *TRAINER.process_parameters} <= names_in(FIRST)


@pytest.mark.parametrize("name", BUILT_IN_WORKLOADS)
def test_every_parameter_is_in_the_section(name: str) -> None:
    parameters = names_of_built_in(BUILT_IN_WORKLOADS[name]).parameters
    assert set(parameters) <= names_in(SECTIONS[name])


CLASS, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
EXPERIMENTS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)


def test_the_class_is_as_short_as_the_page_says_and_experiments_are_right() -> None:
    lines = [line for line in CLASS.splitlines() if line]
    assert len(lines) <= 25
    names = [Experiment.from_text(text).name for text in EXPERIMENTS]
    assert names == ["lines", "under-hydra", "silent"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_class_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: WarmInterpreter
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.py").write_text(CLASS)
    shorter = (
        EXPERIMENTS[0]
        .replace("repeats: 3", "repeats: 1, long_trial: none")
        .replace("[32, 64]", "32")
    )
    (tmp_path / "lines.yaml").write_text(shorter)
    swept = warm("sweep", "lines.yaml", timeout_s=500)
    assert swept.returncode == 0, swept
    rows = scalelab.load(tmp_path / "runs" / "lines").observations
    assert sorted(rows["world_size"]) == [1, 2]
    assert set(rows["outcome"]) == {"completed"}
    assert {name.split()[0] for name in rows["dataset"]} == {"lines"}

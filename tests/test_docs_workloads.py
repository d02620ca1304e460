"""The page of the built-in workloads names all of them with their parameters."""

import re
from pathlib import Path

import pytest

from scalelab.experiment.program import BUILT_IN_WORKLOADS
from scalelab.experiment.workload_names import RANK_PARAMETERS
from scalelab.training.workloads.introspection import names_of_built_in

PAGE = (Path(__file__).parents[1] / "docs" / "workloads.md").read_text()
FIRST, *REST = re.split(r"^## ", PAGE, flags=re.M)
SECTIONS = {part.partition("\n")[0]: part for part in REST}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_workload_has_a_row_and_a_section() -> None:
    assert set(SECTIONS) == set(BUILT_IN_WORKLOADS)
    assert {*BUILT_IN_WORKLOADS, *RANK_PARAMETERS} <= names_in(FIRST)


@pytest.mark.parametrize("name", BUILT_IN_WORKLOADS)
def test_every_parameter_is_in_the_section(name: str) -> None:
    parameters = names_of_built_in(BUILT_IN_WORKLOADS[name]).parameters
    assert set(parameters) <= names_in(SECTIONS[name])

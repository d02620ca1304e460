"""docs/extending.md shows the files of the toy distribution as they are."""

import re
from pathlib import Path
from typing import Any

import pytest

from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.kinds.launchers import LAUNCHERS
from scalelab.kinds.registry import Registry
from scalelab.kinds.resources import RESOURCES
from scalelab.kinds.sources import SOURCES
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.trainers import TRAINERS

TOY = Path(__file__).with_name("toy")
TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
BLOCKS = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TEXT, re.S))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_file_is_shown_as_it_is(name: str) -> None:
    shown = BLOCKS[name].strip()
    if name == "contracts.py":  # one class of it, with the imports of this class
        shown = shown.split("\n\n\n")[-1]
    assert shown in (TOY / name).read_text()


def test_every_file_of_the_package_is_shown() -> None:
    files = {f"scalelab_toy/{path.name}" for path in TOY.glob("scalelab_toy/[a-z]*.py")}
    assert files <= BLOCKS.keys()
    assert TEXT.count("```python") + TEXT.count("```toml") == len(BLOCKS)


@pytest.mark.parametrize(
    "registry",
    [STRATEGIES, LAUNCHERS, BATCH_SYSTEMS, RESOURCES, SOURCES, TRAINERS],
    ids=lambda registry: registry.group,
)
def test_every_kind_has_an_entry(registry: Registry[Any]) -> None:
    assert f"| `{registry.group}` |" in TEXT

"""What holds for a row of any kind: it is installed, and loading it is light."""

import subprocess
import sys
from functools import cache
from typing import Any, ClassVar

import pytest

from scalelab.kinds.registry import Registry, imported

_LOADS = """
import sys
from scalelab.kinds.registry import imported
imported(sys.argv[1])[sys.argv[2]]
print(*sys.modules)
"""
_HEAVY = {"torch", "dask", "distributed", "pytest"}


class RowContract:
    """What the row of every kind promises."""

    registry_path: ClassVar[str]
    """Path of the registry of the kind, ``module:attribute``."""

    @pytest.fixture
    def row(self) -> Any:
        """Return the row that is tested; override it."""
        raise NotImplementedError("Define a fixture `row` that returns your row.")

    @pytest.fixture
    def registry(self) -> Registry[Any]:
        """Return the registry of the kind."""
        found: Registry[Any] = imported(self.registry_path)
        return found

    def test_its_name_is_one_word(self, row: Any) -> None:
        """Users write it in YAML, on command lines and in tables."""
        assert row.name.isidentifier()

    def test_it_is_found_by_its_name(self, row: Any, registry: Registry[Any]) -> None:
        """An entry point of its name leads to it."""
        assert row.name in registry.names
        assert type(registry[row.name]) is type(row)
        assert registry[row.name].name == row.name

    def test_loading_it_is_light(self, row: Any, registry: Registry[Any]) -> None:
        """Its module imports neither torch nor Dask: most commands need neither."""
        is_outside = row.name in registry.outside
        name = row.name if is_outside else registry.built_in[0].name
        assert not _HEAVY & _loaded_with(self.registry_path, name)


@cache
def _loaded_with(registry_path: str, name: str) -> frozenset[str]:
    """Return the modules that an interpreter has loaded to look up a row."""
    answer = subprocess.run(
        [sys.executable, "-c", _LOADS, registry_path, name],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return frozenset(answer.split())

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scalelab.inputs.problems import for_the_command_line
from scalelab.session import import_table
from scalelab.session.run import Run


@pytest.fixture(autouse=True)
def words() -> Iterator[None]:
    """Read messages and notes as the command line prints them."""
    with for_the_command_line():
        yield


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """Import the text of a table as a run."""

    def run_of(text: str, **options: Any) -> Run:
        path = tmp_path / "resnet50.csv"
        path.write_text(text)
        return import_table(path, **{"directory": tmp_path / "run", **options})

    return run_of

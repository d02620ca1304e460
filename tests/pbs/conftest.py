"""PBS, or what stands in for it where there is none."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pbs_sweeps import Pbs


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[Pbs]:
    """Give PBS and a user, of whom nothing runs on afterwards."""
    pbs = Pbs(tmp_path, is_real=shutil.which("qsub") is not None)
    yield pbs
    pbs.kill_what_is_left()

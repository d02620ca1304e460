"""PBS, or what stands in for it where there is none.

On a real PBS run these tests as an ordinary user, since PBS takes no job of root's,
from a host that may submit, with all that hosts need on file systems they share: this
repository, its environment, and the folder of the tests (``pytest --basetemp``). Jobs
of drivers submit further jobs and need ``flatuid``. What only an administrator may do
is skipped. Other jobs are not touched; the processes of a test are ended and its jobs
deleted even when it is killed.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pbs_sweeps import Pbs
from promised import skip_or_fail


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[Pbs]:
    """Give PBS and a user, of whom nothing runs on afterwards."""
    is_real = shutil.which("qsub") is not None
    if is_real and os.geteuid() == 0:
        skip_or_fail("PBS takes no job of root's; run these tests as another user")
    pbs = Pbs(tmp_path, is_real=is_real)
    yield pbs
    pbs.kill_what_is_left()

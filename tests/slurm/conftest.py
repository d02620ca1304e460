"""A real SLURM for the tests of this directory."""

import os
from collections.abc import Callable, Iterator

import pytest
from throwaway_slurm import PROGRAMS, ThrowawaySlurm


@pytest.fixture(scope="session")
def slurm(require_program: Callable[[str], str]) -> Iterator[ThrowawaySlurm]:
    """Four nodes with two fake GPUs each."""
    for name in PROGRAMS:
        require_program(name)
    if os.geteuid() != 0:
        reason = "a SLURM for several users is started by root"
        if os.environ.get("SCALELAB_REQUIRE_PROGRAMS"):
            pytest.fail(reason)
        pytest.skip(reason)
    with ThrowawaySlurm() as slurm:
        yield slurm

"""A real SLURM for the tests of this directory."""

import os
from collections.abc import Callable, Iterator

import pytest
from promised import skip_or_fail
from throwaway_slurm import PROGRAMS, ThrowawaySlurm


@pytest.fixture(scope="session")
def slurm(require_program: Callable[[str], str]) -> Iterator[ThrowawaySlurm]:
    """Four nodes with two fake GPUs each."""
    for name in PROGRAMS:
        require_program(name)
    if os.geteuid() != 0:
        skip_or_fail("a SLURM for several users is started by root only")
    with ThrowawaySlurm() as slurm:
        yield slurm

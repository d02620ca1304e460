"""Fixtures every room shares."""

import os
import shutil
from collections.abc import Callable

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261120)


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """Return a program's path; without it skip, or fail where CI promised it."""

    def require(name: str) -> str:
        if path := shutil.which(name):
            return path
        if os.environ.get("SCALELAB_REQUIRE_PROGRAMS"):
            pytest.fail(f"{name} is not installed, though this run promises it")
        pytest.skip(f"{name} is not installed")

    return require

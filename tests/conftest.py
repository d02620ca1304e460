"""Fixtures every room shares."""

import os
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from conducting import Conductor, Nodes


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


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> type[Conductor]:
    """Let sweeps run without nodes, ended as the test says."""
    monkeypatch.setattr("scalelab.cluster.local.LocalNodes", Nodes)
    monkeypatch.setattr("scalelab.scheduling.driver.Driver", Conductor)
    monkeypatch.setattr(Conductor, "made", [])
    return Conductor

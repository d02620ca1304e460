"""Fixtures every room shares."""

import shutil
import signal
from collections.abc import Callable

import numpy as np
import pytest
from conducting import Conductor, Nodes
from promised import skip_or_fail

# A background job of a shell ignores Ctrl-C, one of nohup a hangup; so would what is
# tested here.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261120)


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """Return a program's path; without it skip, or fail where CI promised it."""

    def require(name: str) -> str:
        return shutil.which(name) or skip_or_fail(f"{name} is not installed")

    return require


@pytest.fixture
def conductor(monkeypatch: pytest.MonkeyPatch) -> type[Conductor]:
    """Let sweeps run without nodes, ended as the test says."""
    monkeypatch.setattr("scalelab.cluster.local.LocalNodes", Nodes)
    monkeypatch.setattr("scalelab.scheduling.driver.Driver", Conductor)
    monkeypatch.setattr(Conductor, "made", [])
    return Conductor

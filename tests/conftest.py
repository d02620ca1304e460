"""Fixtures every room shares."""

import gc
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conducting import Conductor, Nodes
from kept_fits import once
from promised import skip_or_fail
from sentences import IS_WRITTEN, Golden
from warm_interpreter import WarmInterpreter

from scalelab.laws.convergence.law import BatchCurve
from scalelab.laws.step_time.curve import Curve
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.search.expected import expected

# A background job of a shell ignores Ctrl-C, one of nohup a hangup; so would what is
# tested here.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def pytest_collection() -> None:
    """Look for no garbage while tests are gathered: what they import stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for it again, and only in what the tests themselves make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Begin with the files that may take longest: none of them is left for the end.

    Where golden files are written, tests that hold no sentences are left out.
    """
    if IS_WRITTEN:
        held = [item for item in items if "golden" in _fixtures(item)]
        config.hook.pytest_deselected(items=[i for i in items if i not in held])
        items[:] = held

    longest_s: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit_s = mark.args[0] if mark else 0.0
        longest_s[item.path] = max(limit_s, longest_s.get(item.path, 0.0))
    items.sort(key=lambda item: -longest_s[item.path])


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return what holds the sentences of a test, in the golden file of its room."""
    folders = request.path.relative_to(Path(__file__).parent).parts[:-1]
    return Golden(folders[0] if folders else "session", request.node.name)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's site profiles and history out of tests."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _fits_once() -> Iterator[None]:
    """Fit the rows of a curve once by each prior: many tests ask the same rows.

    Nor are related curves fitted twice, or candidates of a sweep predicted twice from
    the same rows.
    """
    with pytest.MonkeyPatch.context() as patch:
        for law in (Curve, BatchCurve):
            patch.setattr(law, "fit", classmethod(once(law.fit.__func__)))
        patch.setattr(StepTimePrior, "_relatives", once(StepTimePrior._relatives))
        patch.setattr("scalelab.search.adaptive.expected", once(expected))
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmInterpreter]:
    """Return an interpreter that has imported ``scalelab``, and runs its commands."""
    with closing(WarmInterpreter("warm_commands.py", "-W", "error")) as interpreter:
        yield interpreter


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

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_sweeps import PATIENCE_S, Start, Sweep
from terminal import Terminal
from warm_interpreter import WarmInterpreter

from scalelab.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def assert_refused(self, code: int = 2) -> None:
        """One paragraph on standard error; the same as JSON if that was asked for."""
        assert self.code == code, self
        if self.out:
            error = json.loads(self.out)
            assert list(error) == ["schema", "kind", "code", "message", "hint"]
            assert error["schema"] == "scalelab.error/1"
            whole = f"{error['message']} {error['hint']}"
            assert self.err.split() == ["Error:", *whole.split()]
        assert "\n" not in self.err.rstrip("\n")
        assert self.err.startswith("Error: ")
        assert 20 < len(self.err) < 1600, self.err
        assert self.err.rstrip("\n").isprintable()


Run = Callable[..., Ended]


@pytest.fixture
def scalelab(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return the command line, run in this process."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main.run([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, and a home without site profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path.with_name("config")))
    return tmp_path


@pytest.fixture
def command() -> list[str]:
    """Return the command line as a program of its own."""
    return [sys.executable, "-W", "error", "-m", "scalelab"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what a user's shell would pass on, without what tests set."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


@pytest.fixture
def start(
    command: list[str], environment: dict[str, str], here: Path
) -> Iterator[Start]:
    """Return a function that starts ``scalelab sweep`` in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *options: str, **popen: object) -> subprocess.Popen[str]:
        Path("experiment.yaml").write_text(text)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen(
            [*command, "sweep", *options, "experiment.yaml"],
            text=True,
            start_new_session=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(_search_path())},
            **settings,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _search_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture
def sweep(warm: WarmInterpreter, environment: dict[str, str], here: Path) -> Sweep:
    """Return a function that sweeps to the end."""

    def sweep(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        Path("experiment.yaml").write_text(text)
        words = ("sweep", *options, "experiment.yaml")
        ended = warm(*words, environment=environment, timeout_s=PATIENCE_S)
        assert "Traceback" not in ended.stderr, ended
        return ended

    return sweep


@pytest.fixture
def terminal() -> Iterator[Callable[[int], Terminal]]:
    made: list[Terminal] = []

    def make(columns: int) -> Terminal:
        made.append(Terminal(columns))
        return made[-1]

    yield make
    for each in made:
        each.close()

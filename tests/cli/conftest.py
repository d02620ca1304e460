import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalelab.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def assert_refused(self, code: int = 2) -> None:
        """One paragraph on standard error, nothing on standard output."""
        assert self.code == code, self
        assert self.out == ""
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

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_programs import FakePrograms


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put programs on the path, alone there, that answer as ``(words, answer)`` say."""
    programs = FakePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(programs.folder))
    return programs.answers


@pytest.fixture
def fake_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    """Give programs that are found before others, in the user's home."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    return FakePrograms(tmp_path)

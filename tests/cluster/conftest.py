from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put programs on the path, alone there, that answer as ``(words, answer)`` say.

    An answer goes with the first words that all occur in the command line.
    """
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, *answers: tuple[str, str], status: int = 0) -> None:
        lines = ["#!/bin/sh"]
        for number, (words, answer) in enumerate(answers):
            (folder / f"{name}.{number}").write_text(answer)
            lines += [
                f'case "$*" in *"{words}"*) /bin/cat {folder}/{name}.{number};'
                f" exit {status};; esac"
            ]
        lines += ['echo "$0 $* has no answer" >&2', "exit 1"]
        path = folder / name
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)

    return make

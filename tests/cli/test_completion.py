"""A real bash completes commands and options; the help lists options in groups."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalelab.cli import main

PROGRAM = Path(sys.executable).with_name("scalelab")
COMPLETED = """
eval "$(scalelab --show-completion)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_scalelab_completion scalelab
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n:"],  # a last command keeps bash running
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["scalelab", ""], {*main.COMMANDS, main.SITE}),
        (["scalelab", "rec"], {main.RECOMMEND}),
        (["scalelab", "site", ""], {"init"}),
        (["scalelab", "recommend", "runs/first", "--dead"], {"--deadline"}),
        (["scalelab", "sweep", "e.yaml", "--sweep-b"], {"--sweep-budget"}),
        (["scalelab", "recommend", "ru"], set()),  # then bash completes a path
    ],
)
def test_a_shell_completes_a_line(words: list[str], expected: set[str]) -> None:
    quoted = " ".join(map(shlex.quote, words))
    ended = in_bash(COMPLETED.format(words=quoted))
    assert ended.stderr == ""
    assert {*ended.stdout.split()} == expected


def test_completion_is_installed_for_bash(tmp_path: Path) -> None:
    ended = in_bash("scalelab --install-completion", HOME=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_a_home_that_cannot_be_written_is_named() -> None:
    ended = in_bash("scalelab --install-completion || echo $?", HOME="/proc")
    assert ended.stdout.strip() == "2"
    assert ended.stderr.startswith("Error: /proc/.bashrc cannot be written: ")
    assert "--show-completion" in ended.stderr


def test_help_lists_options_in_groups(scalelab: Callable[..., Any]) -> None:
    groups, options = [], dict[str, str]()
    for line in scalelab("recommend", "--help").out.splitlines():
        words = line.split()
        if line and not line.startswith(" ") and line.endswith(":"):
            groups.append(line.rstrip(":"))
        elif words and words[0].startswith("-"):
            options[words[0].rstrip(",")] = groups[-1]

    assert groups[0] == "Arguments"
    assert groups[-1] == "Options"
    assert len(groups) > 5
    assert options["--max-time"] == options["--confidence"] == "Limits"
    assert options["--epochs"] == options["--target"] != options["--max-time"]
    assert options["--json"] == "Options"

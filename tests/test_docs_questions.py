"""The page on questions names every option of ``scalelab recommend``, and no other."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import blocks, options, read

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "questions.md").read_text()
NUMBER = re.compile(r"\d+(?:\.\d+)?")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_it_names_all_options_and_no_other() -> None:
    asked = re.sub(r"^scalelab import .*$", "", PAGE, flags=re.MULTILINE)
    named = set(re.findall(r"(?<!\w)--[a-z][a-z-]+", asked))
    known = {name for name in options("scalelab recommend") if name.startswith("--")}
    assert named == known - {"--help"}


@pytest.mark.parametrize("row", ROWS)
def test_its_options_are_read_as_they_stand(row: str) -> None:
    for shown in re.findall(r"`(--[^`]+)`", row):
        read(f"scalelab recommend runs/digits {shown}", is_whole=False)


@pytest.mark.slow
def test_the_worked_case_of_unlike_devices_is_answered_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.partition("## Unlike devices")[2].partition("## Prices")[0]
    commands, shown = blocks(section, "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.setenv("COLUMNS", "100")
    for command in commands.splitlines():
        words = [sys.executable, "-m", *shlex.split(command)]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    there = said.splitlines()[: len(shown.splitlines())]
    for line, expected in zip(there, shown.splitlines(), strict=True):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", expected)
        numbers, known = (map(float, NUMBER.findall(text)) for text in (line, expected))
        assert [*numbers] == pytest.approx([*known], rel=0.03)

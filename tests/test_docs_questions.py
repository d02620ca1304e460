"""The page on questions names every option of ``scalelab recommend``, and no other."""

import re
from pathlib import Path

import pytest
from command_lines import options, read

PAGE = (Path(__file__).parents[1] / "docs" / "questions.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_it_names_all_options_and_no_other() -> None:
    named = set(re.findall(r"(?<!\w)--[a-z][a-z-]+", PAGE))
    known = {name for name in options("scalelab recommend") if name.startswith("--")}
    assert named == known - {"--help"}


@pytest.mark.parametrize("row", ROWS)
def test_its_options_are_read_as_they_stand(row: str) -> None:
    for shown in re.findall(r"`(--[^`]+)`", row):
        read(f"scalelab recommend runs/digits {shown}", is_whole=False)

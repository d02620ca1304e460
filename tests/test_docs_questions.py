"""The page on questions names every option of ``scalelab recommend``, and no other."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_lines import blocks, options, read
from warm_interpreter import WarmInterpreter

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "questions.md").read_text()
NUMBER = re.compile(r"\d+(?:\.\d+)?")
CASES = (
    "Unlike devices",
    "On demand or spot",
    "Campaigns",
    "Chained jobs",
    "The job afterwards",
    "Waits in the queue",
    "Energy and carbon",
)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_it_names_all_options_and_no_other() -> None:
    asked = re.sub(r"\bscalelab (?:import|sweep) .*$", "", PAGE, flags=re.MULTILINE)
    named = set(re.findall(r"(?<!\w)--[a-z][a-z-]+", asked))
    every = options("scalelab recommend") | options("scalelab follow")
    known = {name for name in every if name.startswith("--")}
    assert named == known - {"--help"}


@pytest.mark.parametrize("row", ROWS)
def test_its_options_are_read_as_they_stand(row: str) -> None:
    for shown in re.findall(r"`(--[^`]+)`", row):
        read(f"scalelab recommend runs/digits {shown}", is_whole=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the page's commands run, with the example's run in it."""
    place = tmp_path_factory.mktemp("questions")
    (place / "experiments").symlink_to(ROOT / "experiments")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_a_worked_case_is_answered_as_it_stands(
    title: str,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm: WarmInterpreter,
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # with a history of its own
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    imported = [line for line in PAGE.splitlines() if line.startswith("scalelab imp")]
    if not (directory / "runs").exists():
        ask(warm, *imported)
    waits = directory / "runs" / "cpu_or_gpu" / "waits.json"
    waits.unlink(missing_ok=True)
    if waits.name in section:
        shutil.copy(ROOT / "experiments" / "cpu_or_gpu_waits.json", waits)
    lines: list[str] = []
    for block in blocks(section, ""):
        if block.startswith("scalelab "):
            asked = [line for line in block.splitlines() if line not in imported]
            lines = ask(warm, *asked)
            continue
        expected = block.splitlines()
        plain = [NUMBER.sub("#", line) for line in lines]
        at = plain.index(NUMBER.sub("#", expected[0]))
        for line, shown in zip(lines[at : at + len(expected)], expected, strict=True):
            assert NUMBER.sub("#", line) == NUMBER.sub("#", shown)
            found, known = (map(float, NUMBER.findall(text)) for text in (line, shown))
            assert [*found] == pytest.approx([*known], rel=0.03)


def ask(warm: WarmInterpreter, *commands: str) -> list[str]:
    """Run commands of the page, and return the lines that the last one prints."""
    for command in commands:
        _, *words = shlex.split(command)
        ended = warm(*words)
        ended.check_returncode()
    return ended.stdout.splitlines()

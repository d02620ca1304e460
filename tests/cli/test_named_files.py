"""Files that a user names may be links; pipes and devices are refused at once."""

import os
from pathlib import Path

import pytest
from measured_runs import EMULATED, measured_run

from scalelab.cli.main import run

COMMANDS = (
    "plan site.yaml",
    "plan {place}",
    "import {place} runs/x",
    "init --from {place}",
    "init --from train.py --log {place}",
    "recommend runs/small --prices {place}",
    "follow runs/small {place}",
    "follow runs/small 17 --log {place}",
    "status {place}",
    "recommend {place}",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    measured_run(tmp_path / "runs" / "small")
    (tmp_path / "train.py").write_text("print('step 1')\n")
    return tmp_path


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["./pipe", "./zero", "./folder"])
def test_what_is_no_regular_file_is_refused_at_once(
    command: str, place: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(home / "pipe")
    (home / "zero").symlink_to("/dev/zero")
    (home / "folder").mkdir()
    text = "\n".join(EMULATED.splitlines()[:-1])
    (home / "site.yaml").write_text(f"{text}\nsite: {place}/x.yaml\n")
    if place != "./folder":
        (home / "site.yaml").write_text(f"{text}\nsite: {place}\n")

    status = run(command.format(place=place).split())
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith("Error: ")
    assert said.count("\n") == 1


def test_a_link_to_a_file_is_followed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "elsewhere.yaml").write_text(EMULATED)
    (home / "linked.yaml").symlink_to("elsewhere.yaml")
    (home / "linked").symlink_to("runs/small")
    assert run(["plan", "linked.yaml"]) == 0
    assert run(["status", "linked"]) == 0
    assert capsys.readouterr().err == ""

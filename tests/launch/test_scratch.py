import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.launch.scratch import make_scratch

MAKE = """
import sys
from scalelab.launch.scratch import make_scratch

print(make_scratch(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where scratch directories are made, here and in processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start() -> tuple["subprocess.Popen[str]", Path]:
    """Start a process that has a scratch directory; return both."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def left_behind() -> Path:
    """Return the scratch directory of a process that was killed."""
    process, scratch = start()
    with process:
        process.kill()
    return scratch


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(
    disk: Path,
) -> None:
    process, left = start()
    with process:
        (left / "more").mkdir()
        first = make_scratch()
        assert sorted(disk.iterdir()) == sorted([left, first])
        process.kill()
    second = make_scratch()
    assert sorted(disk.iterdir()) == sorted([first, second])


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "before"}])
def test_what_a_process_of_another_host_may_use_stays(change: dict[str, str]) -> None:
    left = left_behind()
    owner = left / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_bytes()), **change}))
    make_scratch()
    assert left.exists()


def test_what_does_not_say_whose_it_is_stays(disk: Path) -> None:
    left = left_behind()
    (disk / "scalelab-mine").mkdir()
    for said in ("", "[]", "{}", '{"pid": 1'):
        (left / "owner.json").write_text(said)
        make_scratch()
        assert left.exists()
    assert (disk / "scalelab-mine").exists()


def test_what_another_user_left_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_behind()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    make_scratch()
    assert left.exists()
    monkeypatch.setattr(os, "getuid", lambda: user)
    make_scratch()
    assert not left.exists()


def test_a_disk_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StoreError, match="gone cannot be written: No such file"):
        make_scratch()

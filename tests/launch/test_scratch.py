import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.launch import scratch
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
    process, made = start()
    with process:
        process.kill()
    return made


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


def say_of_owner(left: Path, **changes: str) -> None:
    owner = left / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_bytes()), **changes}))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where this machine's id stands, here alone."""
    monkeypatch.setattr(scratch, "_MACHINE_ID", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text("5f1d\n")
    return tmp_path / "machine-id"


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere", "machine": "5f1d", "boot": "before/pid:[1]"},
        {"machine": "77aa", "boot": "before/pid:[1]"},
        {"machine": "", "boot": "before/pid:[1]"},
        {"machine": "5f1d", "boot": ""},
    ],
)
def test_what_a_process_of_another_host_may_use_stays(
    machine: Path, changes: dict[str, str]
) -> None:
    left = left_behind()
    say_of_owner(left, **changes)
    make_scratch()
    assert left.exists()


def test_what_was_there_before_this_machine_booted_goes(machine: Path) -> None:
    left = left_behind()
    say_of_owner(left, machine="5f1d", boot="before/pid:[1]")
    make_scratch()
    assert not left.exists()


def test_a_machine_without_an_id_is_not_known_again(machine: Path) -> None:
    machine.unlink()
    left = left_behind()
    say_of_owner(left, machine="", boot="before/pid:[1]")
    assert json.loads((make_scratch() / "owner.json").read_bytes())["machine"] == ""
    assert left.exists()


def test_what_another_container_of_this_host_uses_stays_until_it_has_ended() -> None:
    process, left = start()
    boot = json.loads((left / "owner.json").read_bytes())["boot"].partition("/")[0]
    say_of_owner(left, host="container", boot=f"{boot}/pid:[1]")
    with process:
        make_scratch()
        assert left.exists()
        process.kill()
    make_scratch()
    assert not left.exists()


def test_a_disk_without_locks_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    left, mine = left_behind(), make_scratch()
    process = json.loads((mine / "owner.json").read_bytes())
    assert process["is_locked"] is False
    assert mine.is_dir()
    assert left.is_dir()  # locked, it says; and nothing tells here whether it still is


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

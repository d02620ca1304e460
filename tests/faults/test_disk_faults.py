"""A disk that refuses, at a random moment of a real sweep."""

import ctypes
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_checks import EVERY_SEED, check_complete, check_gone, random_moment, resumed
from promised import skip_or_fail
from swept import AttemptKey, Ended, Sweep

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1

pytestmark = EVERY_SEED


@pytest.fixture
def small_disk(sweep: Sweep) -> Iterator[Path]:
    """Put a file system of its own under the runs."""
    disk = sweep.run.parent
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mounted.returncode != 0:
        skip_or_fail(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield disk
    sweep.kill_what_is_left()
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.repetition
def test_a_disk_that_fills_up_ends_the_sweep_and_loses_nothing(
    sweep: Sweep,
    small_disk: Path,
    rng: random.Random,
    patience_s: float,
    control_s: float,
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    before = sweep.measured()
    filler = fill(small_disk)
    ended = sweep.end(patience_s)
    check_refusal(sweep, ended, "No space left on device. Free space", control_s)
    filler.unlink()
    finish_after_refusal(sweep, before, patience_s, control_s)


def fill(disk: Path) -> Path:
    """Take what is free on a disk, and return the file that has it."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        while free := shutil.disk_usage(disk).free:
            # The sweep may have taken some of it meanwhile; then nothing is allocated.
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
    return filler


@pytest.mark.repetition
@pytest.mark.two_nodes
def test_a_limit_on_the_size_of_files_ends_the_sweep_and_loses_nothing(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    # The ledger grows; from here on it is larger than any file of an attempt.
    random_moment(sweep, rng, patience_s, first=6)
    before = sweep.measured()
    limit = (sweep.run / "ledger.jsonl").stat().st_size
    for pid in sweep.descendants():
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))
    ended = sweep.end(patience_s)
    check_refusal(sweep, ended, "File too large. Free space", control_s)
    finish_after_refusal(sweep, before, patience_s, control_s)


@pytest.mark.repetition
def test_a_directory_that_becomes_read_only_ends_the_sweep_and_loses_nothing(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.before_exec = obey_permissions
    sweep.start()
    random_moment(sweep, rng, patience_s)
    before = sweep.measured()
    directories = [sweep.run, *(path for path in sweep.run.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(0o555)
    said = "Permission denied. Give yourself write permission there"
    check_refusal(sweep, sweep.end(patience_s), said, control_s, is_tidy=False)
    sweep.start()
    check_refusal(sweep, sweep.end(patience_s), said, control_s, is_tidy=False)
    for directory in directories:
        directory.chmod(0o755)
    finish_after_refusal(sweep, before, patience_s, control_s)


def obey_permissions() -> None:
    """Let permission bits hold for the superuser too, from the next exec on."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the capability cannot be given up")


def check_refusal(
    sweep: Sweep, ended: Ended, reason: str, control_s: float, *, is_tidy: bool = True
) -> None:
    """Check that the sweep ended with one paragraph that says why."""
    check_gone(sweep, control_s)
    assert ended.status == 2, ended.said
    assert "Traceback" not in ended.said
    error = ended.said.strip().rpartition("\n")[2]
    assert error.startswith(f"Error: {sweep.run}/")
    assert reason in error


def finish_after_refusal(
    sweep: Sweep, before: set[AttemptKey], patience_s: float, control_s: float
) -> None:
    finished = sweep.measured()
    assert before <= finished
    resumed(sweep, patience_s)
    check_complete(sweep, finished)
    check_gone(sweep, control_s)

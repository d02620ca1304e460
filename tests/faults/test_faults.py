"""One fault at a time, at a random moment of a real sweep.

Whatever happens, the sweep ends by itself and says what is missing; no finished trial
is lost, none is doubled, no process is left; the same command then completes the run.

``SCALELAB_FAULT_SEEDS`` is the number of random moments tried per fault; every second
one runs on two nodes where the first runs on one, and the other way round. The clock is
simulated (``jumping_clock.c``): the time of day that the C library tells jumps in the
driver, the workers, the rank servers and the ranks; the kernel's, and with it the times
of files, does not.
"""

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from swept import (
    NUM_TRIALS,
    ONE_NODE,
    STALL_TIMEOUT_S,
    TWO_NODES,
    AttemptKey,
    Ended,
    Rank,
    Sweep,
    sweep_in,
    wait_until,
)

SEEDS = range(int(os.environ.get("SCALELAB_FAULT_SEEDS", "1")))
PATIENCE = 10.0
"""A sweep with a fault may take this many times as long as one without."""
TRIAL_S = 0.4
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}"),
]


@pytest.fixture(scope="session")
def control_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return how long a sweep takes when nothing happens."""
    with sweep_in(tmp_path_factory.mktemp("control")) as sweep:
        sweep.start()
        ended = sweep.end(within_s=400)
        assert ended.status == 0, ended.said
        assert set(sweep.observations()["attempt"]) == {1}
        check_complete(sweep)
        check_gone(sweep, ended.took_s)
        return ended.took_s


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    return random.Random(f"{request.function.__name__} {seed}")


@pytest.fixture
def sweep(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> Iterator[Sweep]:
    """A sweep on the test's own number of nodes for even seeds, the other for odd."""
    sites = [ONE_NODE, TWO_NODES]
    if request.node.get_closest_marker("two_nodes"):
        sites.reverse()
    with sweep_in(tmp_path, sites[seed % 2]) as sweep:
        yield sweep


@pytest.fixture
def patience_s(control_s: float) -> float:
    return PATIENCE * control_s


def random_moment(
    sweep: Sweep, rng: random.Random, patience_s: float, first: int = 0
) -> None:
    """Wait for a moment inside the first two thirds of the trials."""
    await_ends(sweep, rng.randint(first, NUM_TRIALS * 2 // 3), patience_s)
    wait_until(sweep.ranks, "a rank runs", patience_s, sweep)
    time.sleep(rng.uniform(0, TRIAL_S))


def await_ends(sweep: Sweep, number: int, patience_s: float) -> None:
    what = f"{number} trials have ended"
    wait_until(lambda: sweep.num_ended() >= number, what, patience_s, sweep)


def some_rank(
    sweep: Sweep,
    rng: random.Random,
    patience_s: float,
    is_wanted: Callable[[list[Rank]], list[Rank]] = lambda ranks: ranks,
) -> Rank:
    """Return a rank at a random moment in the first half of its trial."""
    before = {rank.attempt for rank in sweep.ranks()}

    def new_ranks() -> list[Rank]:
        return is_wanted([each for each in sweep.ranks() if each.attempt not in before])

    found = wait_until(new_ranks, "a further rank runs", patience_s, sweep)
    time.sleep(rng.uniform(0, TRIAL_S / 2))
    return rng.choice(found)


def halted_rank(sweep: Sweep, rng: random.Random, patience_s: float) -> Rank:
    """Return a rank that is halted before its trial has come to an end."""
    while True:
        rank = some_rank(sweep, rng, patience_s)
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGSTOP)
            if rank.attempt not in sweep.measured():
                return rank
            os.kill(rank.pid, signal.SIGCONT)


def resumed(sweep: Sweep, patience_s: float, *flags: str) -> Ended:
    sweep.start(*flags)
    ended = sweep.end(patience_s)
    assert ended.status == 0, ended.said
    return ended


def check_complete(sweep: Sweep, finished: set[AttemptKey] = frozenset()) -> None:  # type: ignore[assignment]
    """Check that every trial counts once, and those finished before as they did."""
    frame = sweep.observations()
    rows = frame[frame["outcome"] == "completed"]
    measured = list(zip(rows["trial_id"], rows["attempt"], strict=True))
    assert len({trial_id for trial_id, _ in measured}) == NUM_TRIALS
    assert len(measured) == NUM_TRIALS, "a trial was measured twice"
    assert finished <= set(measured), "a finished trial was lost"
    assert frame.loc[frame["outcome"] != "completed", "reason"].str.len().gt(0).all()
    ends = [
        (line["row"]["trial_id"], line["row"]["attempt"])
        for line in sweep.ledger()
        if line["event"] == "end"
    ]
    assert len(set(ends)) == len(ends) == len(frame)
    check_files(sweep)


def check_files(sweep: Sweep) -> None:
    """Check that the run directory holds whole files and nothing besides."""
    frame = sweep.observations()
    outcomes = {
        (path.parent.parent.name, int(path.parent.name)): json.loads(path.read_bytes())
        for path in sweep.run.glob("trials/*/*/result.json")
    }
    assert {key: result["outcome"] for key, result in outcomes.items()} == {
        (row.trial_id, row.attempt): row.outcome for row in frame.itertuples()
    }
    assert len(list(sweep.run.glob("trials/*/*"))) == len(frame)
    assert [*sweep.run.parent.rglob(".*")] == [], "half-written files"
    assert not (sweep.run / "driver.lease").exists()


def check_gone(sweep: Sweep, patience_s: float, *, is_tidy: bool = True) -> None:
    """Check that no process is left, and nothing in the temporary directory."""
    deadline = time.monotonic() + patience_s
    while (left := sweep.left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    if is_tidy:
        assert list(sweep.temporary.iterdir()) == []


@pytest.mark.two_nodes
def test_a_killed_rank_costs_its_own_trial(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    victim = halted_rank(sweep, rng, patience_s)
    finished = sweep.measured()
    os.kill(victim.pid, signal.SIGKILL)
    ended = sweep.end(patience_s)
    check_gone(sweep, control_s)
    check_one_failure(
        sweep, ended, victim, "failed", f"rank {victim.number} was killed by SIGKILL"
    )
    resumed(sweep, patience_s, "--retry-failed")
    check_complete(sweep, finished)
    check_gone(sweep, control_s)


def test_a_stopped_rank_is_found_out(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    victim = halted_rank(sweep, rng, patience_s)
    finished = sweep.measured()
    ended = sweep.end(patience_s + 2 * STALL_TIMEOUT_S)
    check_gone(sweep, control_s)
    check_one_failure(sweep, ended, victim, "stalled", "stopped by a signal")
    resumed(sweep, patience_s, "--retry-failed")
    check_complete(sweep, finished)
    check_gone(sweep, control_s)


def check_one_failure(
    sweep: Sweep, ended: Ended, victim: Rank, outcome: str, reason: str
) -> None:
    """Check that the sweep says which trial it could not measure, and why."""
    row = sweep.row(victim.attempt)
    assert row["outcome"] == outcome, row["reason"]
    assert reason in row["reason"]
    others = sweep.observations().query("trial_id != @victim.attempt[0]")
    assert list(others["outcome"]) == ["completed"] * (NUM_TRIALS - 1)
    assert ended.status == 1, ended.said
    assert f"{outcome}: {victim.attempt[0]}" in ended.said
    assert reason in ended.said
    assert "Not measured: 1 trial. --retry-failed tries again." in ended.said


@pytest.mark.two_nodes
def test_a_killed_rank_server_costs_an_attempt(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    finished = sweep.measured()
    os.kill(rng.choice(sweep.servers()), signal.SIGKILL)
    check_lost_attempts(sweep, sweep.end(patience_s), finished)
    check_gone(sweep, control_s)


@pytest.mark.two_nodes
def test_a_killed_worker_costs_an_attempt(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    finished = sweep.measured()
    os.kill(rng.choice(sweep.workers()), signal.SIGKILL)
    check_lost_attempts(sweep, sweep.end(patience_s), finished)
    check_gone(sweep, control_s)


def check_lost_attempts(sweep: Sweep, ended: Ended, finished: set[AttemptKey]) -> None:
    """Check that the sweep completed, whatever attempts were lost on the way."""
    assert ended.status == 0, ended.said
    check_complete(sweep, finished)
    frame = sweep.observations()
    lost = frame[frame["outcome"] != "completed"]
    assert set(lost["outcome"]) <= {"node_fail"}, list(lost["reason"])
    for trial_id in lost["trial_id"]:
        assert f"Trial {trial_id}" in ended.said
        assert "node_fail; it runs again" in ended.said


def test_a_killed_driver_is_resumed(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    # Also while the nodes start, and while the report is written.
    time.sleep(rng.uniform(0, control_s))
    kill_the_driver(sweep, patience_s, control_s)


@pytest.mark.two_nodes
def test_a_driver_killed_during_a_trial_on_two_devices_is_resumed(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    def partners(ranks: list[Rank]) -> list[Rank]:
        second = {rank.attempt for rank in ranks if rank.number == 1}
        return [rank for rank in ranks if rank.attempt in second]

    sweep.start()
    random_moment(sweep, rng, patience_s)
    some_rank(sweep, rng, patience_s, partners)
    kill_the_driver(sweep, patience_s, control_s)


def kill_the_driver(sweep: Sweep, patience_s: float, control_s: float) -> None:
    """Kill it, let it resume, and check that nothing was lost."""
    before = sweep.measured()
    running = {rank.attempt for rank in sweep.ranks()}
    os.kill(sweep.driver, signal.SIGKILL)
    ended = sweep.end(patience_s)
    assert ended.status in (-signal.SIGKILL, 0), ended.said
    check_gone(sweep, control_s, is_tidy=False)
    finished = sweep.measured()
    assert before <= finished
    ended = resumed(sweep, patience_s)
    if 0 < len(finished) < NUM_TRIALS:
        left = NUM_TRIALS - len(finished)
        assert re.search(rf"\b{len(finished)} trials? done, {left} ", ended.said)
    check_complete(sweep, finished)
    lost = [sweep.row(attempt)["outcome"] for attempt in running - finished]
    assert set(lost) <= {"node_fail", "cancelled"}
    check_gone(sweep, control_s, is_tidy=False)


@pytest.fixture
def small_disk(sweep: Sweep) -> Iterator[Path]:
    """Put a file system of its own under the runs."""
    disk = sweep.run.parent
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield disk
    sweep.kill_what_is_left()
    subprocess.run(["umount", str(disk)], check=True)


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
    with filler.open("wb") as file, suppress(OSError):
        while free := shutil.disk_usage(disk).free:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
    return filler


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


@pytest.fixture(scope="session")
def jumping_clock(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]
) -> Path:
    """Return a library that lets the time of day jump in whatever preloads it."""
    library = tmp_path_factory.mktemp("clock") / "jumping_clock.so"
    source = Path(__file__).with_name("jumping_clock.c")
    compiler = [require_program("cc"), "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run([*compiler, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.two_nodes
def test_a_clock_that_jumps_changes_nothing(
    sweep: Sweep,
    jumping_clock: Path,
    rng: random.Random,
    patience_s: float,
    control_s: float,
) -> None:
    clock = sweep.home / "clock"
    clock.write_bytes(struct.pack("d", 0.0))
    sweep.env = {"LD_PRELOAD": str(jumping_clock), "SCALELAB_CLOCK": str(clock)}
    sweep.start()
    time.sleep(rng.uniform(0, control_s / 2))
    for jump_s in rng.sample([86_400.0, -3_600.0, 30.0, -0.5], k=4):
        with clock.open("r+b") as file:
            file.write(struct.pack("d", jump_s))
        further = sweep.num_ended() + rng.randint(0, 3)
        await_ends(sweep, min(further, NUM_TRIALS), patience_s)
        time.sleep(rng.uniform(0, TRIAL_S))
    ended = sweep.end(patience_s)
    assert ended.status == 0, ended.said
    check_complete(sweep)
    frame = sweep.observations()
    assert set(frame["attempt"]) == {1}
    assert frame["allocated_gpu_s"].between(TRIAL_S / 2, 2 * ended.took_s).all()
    assert frame["step_time_s"].between(0.01, ended.took_s).all()
    check_gone(sweep, control_s)

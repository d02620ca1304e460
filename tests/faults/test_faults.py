"""One fault at a time, at a random moment of a real sweep.

Whatever happens, the sweep ends by itself and says what is missing; no finished trial
is lost, none is doubled, no process is left; the same command then completes the run.

``SCALELAB_FAULT_SEEDS`` is the number of random moments tried per fault; every second
one runs on two nodes where the first runs on one, and the other way round. The clock is
simulated (``jumping_clock.c``): the time of day that the C library tells jumps in the
driver, the workers, the rank servers and the ranks; the kernel's, and with it the times
of files, does not.
"""

import os
import random
import re
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fault_checks import (
    EVERY_SEED,
    TRIAL_S,
    await_ends,
    check_complete,
    check_gone,
    halted_rank,
    random_moment,
    resumed,
    some_rank,
)
from preloading import compiled
from swept import (
    LOST_AFTER_S,
    NUM_TRIALS,
    STALL_TIMEOUT_S,
    AttemptKey,
    Ended,
    Rank,
    Sweep,
)

pytestmark = EVERY_SEED


@pytest.mark.repetition
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


@pytest.mark.repetition
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
    assert "Not measured: 1 trial. sweep --retry-failed tries again." in ended.said


@pytest.mark.repetition
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


@pytest.mark.repetition
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


@pytest.mark.repetition
@pytest.mark.two_nodes
def test_a_stopped_worker_costs_an_attempt(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.change("gpus_per_node", f"lost_after: {LOST_AFTER_S}s, gpus_per_node")
    sweep.start()
    random_moment(sweep, rng, patience_s)
    some_rank(sweep, rng, patience_s)
    finished = sweep.measured()
    stopped = rng.choice(sweep.workers())
    os.kill(stopped, signal.SIGSTOP)
    ended = sweep.end(patience_s + 4 * LOST_AFTER_S)
    assert "has not answered for" in ended.said
    check_lost_attempts(sweep, ended, finished)
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


@pytest.mark.repetition
def test_a_killed_driver_is_resumed(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    # Also while the nodes start, and while the report is written.
    time.sleep(rng.uniform(0, control_s))
    kill_the_driver(sweep, patience_s, control_s)


@pytest.mark.repetition
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


@pytest.mark.repetition
def test_a_rank_that_gets_sigterm_is_tried_again(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    """As a batch system sends it to all processes of a job that is preempted."""
    sweep.start()
    random_moment(sweep, rng, patience_s)
    victim = halted_rank(sweep, rng, patience_s)
    os.kill(victim.pid, signal.SIGTERM)
    os.kill(victim.pid, signal.SIGCONT)
    ended = sweep.end(patience_s)
    assert ended.status == 0, ended.said
    assert sweep.row(victim.attempt)["outcome"] == "preempted"
    check_complete(sweep)
    check_gone(sweep, control_s)


@pytest.mark.repetition
def test_a_killed_resource_tracker_costs_nothing(
    sweep: Sweep, rng: random.Random, patience_s: float, control_s: float
) -> None:
    sweep.start()
    random_moment(sweep, rng, patience_s)
    (tracker,) = (
        child
        for child in psutil.Process(sweep.driver).children()
        if any("resource_tracker" in word for word in child.cmdline())
    )
    tracker.kill()
    # Python starts another one, and complains of what that does not know.
    ended = sweep.end(patience_s)
    assert ended.status == 0, ended.said
    check_complete(sweep)
    assert set(sweep.observations()["attempt"]) == {1}
    check_gone(sweep, control_s)


@pytest.mark.repetition
def test_of_three_drivers_at_once_one_sweeps(
    sweep: Sweep, patience_s: float, control_s: float
) -> None:
    others = [sweep.another(), sweep.another()]
    drivers = [sweep, *others]
    for driver in drivers:
        driver.start()
    ends = [driver.end(patience_s) for driver in drivers]
    assert sorted(ended.status for ended in ends) == [0, 2, 2], ends
    for ended in ends:
        if ended.status == 2:
            assert "One driver writes a run at a time." in ended.said
            assert "Traceback" not in ended.said
    check_complete(sweep)
    assert set(sweep.observations()["attempt"]) == {1}
    check_gone(sweep, control_s)


@pytest.fixture(scope="session")
def jumping_clock(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]
) -> Path:
    """Return a library that lets the time of day jump in whatever preloads it."""
    return compiled(
        "jumping_clock", require_program("cc"), tmp_path_factory.mktemp("clock")
    )


@pytest.mark.repetition
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

"""Moments at which faults come, and what holds after every one of them."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from swept import NUM_TRIALS, AttemptKey, Ended, Rank, Sweep
from waiting import wait_until

SEEDS = range(int(os.environ.get("SCALELAB_FAULT_SEEDS", "1")))
TRIAL_S = 0.4

EVERY_SEED = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}"),
]
"""The marks of every module of fault tests."""


def random_moment(
    sweep: Sweep,
    rng: random.Random,
    patience_s: float,
    first: int = 0,
    last: int = NUM_TRIALS * 2 // 3,
) -> None:
    """Wait for a moment after some trials, by default at most two thirds of them."""
    await_ends(sweep, rng.randint(first, last), patience_s)
    wait_until(sweep.ranks, "a rank runs", patience_s, said=sweep.said)
    time.sleep(rng.uniform(0, TRIAL_S))


def await_ends(sweep: Sweep, number: int, patience_s: float) -> None:
    wait_until(
        lambda: sweep.num_ended() >= number,
        f"{number} trials have ended",
        patience_s,
        said=sweep.said,
    )


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

    found = wait_until(new_ranks, "a further rank runs", patience_s, said=sweep.said)
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
    wait_until(
        lambda: not sweep.left(),
        "no process is left",
        patience_s,
        said=lambda: str(sweep.left()),
    )
    if is_tidy:
        assert list(sweep.temporary.iterdir()) == []

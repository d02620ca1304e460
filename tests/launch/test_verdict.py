from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.launch.verdict import (
    RankFailure,
    after_oom_kills,
    first_cause,
    from_exception,
    from_exit,
    last_lines,
    merge,
)
from scalelab.records.attempt import AttemptResult


def raised(
    error: Any, device_type: str = "cpu", rank: int = 0, at_s: float = 0.0
) -> RankFailure:
    try:
        raise error
    except type(error) as caught:
        return from_exception(rank, at_s, caught, device_type)


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("error", "device_type", "outcome"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried ..."), "cuda", "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "cuda", "out_of_memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when"), "cuda", "out_of_memory"),
        (MemoryError(), "cpu", "out_of_memory"),
        (MemoryError(), "cuda", "host_out_of_memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
            "cpu",
            "out_of_memory",
        ),
        (OSError(12, "Cannot allocate memory"), "cpu", "out_of_memory"),
        (RuntimeError("std::bad_alloc"), "cuda", "host_out_of_memory"),
        (ValueError("can't allocate memory"), "cpu", "failed"),
        (RuntimeError("shape mismatch"), "cuda", "failed"),
    ],
)
def test_exception_means(error: Any, device_type: str, outcome: str) -> None:
    assert raised(error, device_type).outcome == outcome


def test_cause_of_an_exception_counts() -> None:
    error = ValueError("the step failed")
    error.__cause__ = MemoryError()
    assert raised(error).outcome is Outcome.OUT_OF_MEMORY


def test_circular_context_ends() -> None:
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error
    assert raised(error).outcome is Outcome.FAILED


def test_headline_is_one_line_and_not_endless() -> None:
    here = r" at test_verdict\.py:\d+"
    for error, said in (
        (ValueError("first\nsecond"), f"raised ValueError{here}: first"),
        (KeyboardInterrupt(), f"raised KeyboardInterrupt{here}"),
        (SpecError("no such name"), "raised SpecError: no such name"),
    ):
        assert re.fullmatch(said, raised(error).summary)
    assert len(raised(ValueError("x" * 9999)).summary) < 400
    assert len(raised(ValueError("x" * 99999)).traceback) <= 20_000


def exited(
    status: int,
    tmp_path: Path,
    *,
    oom_kills: int = 0,
    device_type: str = "cpu",
    said: str = "",
) -> AttemptResult:
    log = tmp_path / "rank-1.log"
    log.write_text(said)
    failure = from_exit(1, 0.0, status, device_type, log, oom_kills)
    return failure.result(log)


def test_exit_means(tmp_path: Path) -> None:
    killed = exited(-signal.SIGKILL, tmp_path)
    assert (killed.outcome, killed.traceback) == (Outcome.FAILED, "SIGKILL")
    starved = exited(-signal.SIGKILL, tmp_path, oom_kills=1)
    assert starved.outcome is Outcome.HOST_OUT_OF_MEMORY
    assert starved.reason == (
        "rank 1 was killed by the kernel: the node ran out of memory"
    )
    aborted = exited(
        -signal.SIGABRT, tmp_path, said="std::bad_alloc", device_type="cuda"
    )
    assert aborted.outcome is Outcome.HOST_OUT_OF_MEMORY
    assert exited(-signal.SIGABRT, tmp_path).outcome is Outcome.FAILED
    assert exited(-signal.SIGTERM, tmp_path).outcome is Outcome.PREEMPTED
    realtime = exited(-(signal.SIGRTMIN + 3), tmp_path)
    assert realtime.reason == f"rank 1 was killed by signal {signal.SIGRTMIN + 3}"


def test_last_lines_join_a_reason_without_traceback(tmp_path: Path) -> None:
    said = "\n".join(f"line {number}" for number in range(9))
    assert exited(2, tmp_path, said=said).reason == (
        "rank 1 exited with status 2 before it returned a result; last lines of "
        "rank-1.log: line 4 | line 5 | line 6 | line 7 | line 8"
    )
    assert last_lines(tmp_path / "absent") == ""


ECHO = RuntimeError(
    "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1"
)


def test_first_cause_is_the_earliest_that_is_no_echo() -> None:
    echo = raised(ECHO, rank=0, at_s=1.0)
    late = raised(ValueError("late"), rank=1, at_s=3.0)
    early = raised(ValueError("early"), rank=2, at_s=2.0)
    assert first_cause([echo, late, early]) is early
    assert first_cause([raised(ECHO, rank=3, at_s=5.0), echo]) is echo


def test_killed_loader_worker_is_host_out_of_memory() -> None:
    failure = raised(
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    )
    assert after_oom_kills(failure, 0) is failure
    assert after_oom_kills(failure, 1).outcome is Outcome.HOST_OUT_OF_MEMORY
    other = raised(ValueError("x"))
    assert after_oom_kills(other, 1) is other


def word(
    outcome: Outcome, traceback: str | None = None, **measurements: int | list[str]
) -> AttemptResult:
    return AttemptResult(
        outcome=outcome, reason="why", traceback=traceback, measurements=measurements
    )


def test_merge_takes_measurements_from_node_0_and_hosts_from_all() -> None:
    merged = merge(
        [
            word(Outcome.TARGET_NOT_REACHED, hosts=["a"], num_steps=5, validity=["x"]),
            word(Outcome.COMPLETED, hosts=["b"], validity=["x", "y"]),
        ]
    )
    assert merged.outcome is Outcome.TARGET_NOT_REACHED
    assert merged.measurements == {
        "hosts": ["a", "b"],
        "num_steps": 5,
        "validity": ["x", "y"],
    }


@pytest.mark.parametrize(
    "echo",
    [
        word(Outcome.CANCELLED),
        word(Outcome.STALLED),
        word(Outcome.FAILED, "Traceback\nRuntimeError: Connection reset by peer"),
    ],
)
def test_merge_blames_the_node_where_it_began(echo: AttemptResult) -> None:
    cause = word(Outcome.FAILED, "Traceback\nValueError: bad", hosts=["b"])
    assert merge([echo, cause]).traceback == cause.traceback
    assert merge([cause, echo]).traceback == cause.traceback
    assert merge([echo, word(Outcome.COMPLETED)]).outcome is echo.outcome


@pytest.mark.parametrize("outcome", [Outcome.NODE_FAIL, Outcome.OUT_OF_MEMORY])
def test_what_a_node_lost_is_no_echo_whatever_its_ranks_say(outcome: Outcome) -> None:
    lost = word(outcome, "Traceback\nDistBackendError: Connection refused")
    cancelled = word(Outcome.CANCELLED)
    assert merge([lost, cancelled]).outcome is outcome
    assert merge([cancelled, lost]).outcome is outcome


def test_merge_blames_the_halted_rank_that_the_others_wait_for() -> None:
    waits = AttemptResult(
        outcome=Outcome.STALLED,
        reason="no progress for 9 s: rank 0 at step 3",
        rank=0,
        traceback="Stack of rank 0:\nin all_reduce",
        log="rank-0.log",
    )
    halted = AttemptResult(
        outcome=Outcome.STALLED,
        reason="no progress for 9 s: rank 1 at step 3 (stopped by a signal)",
        rank=1,
        traceback="",
        log="rank-1.log",
    )
    assert merge([waits, halted]) == halted
    assert merge([halted, waits]) == halted
    place = "rank 1 at step 3 (stopped by a signal)"
    cancelled = AttemptResult(
        outcome=Outcome.CANCELLED,
        reason="Node 0 of the attempt ended: no progress",
        rank=1,
        traceback=place,
        log="rank-1.log",
    )
    merged = merge([waits, cancelled])
    assert merged.outcome is Outcome.STALLED
    assert merged.reason == f"no progress for 9 s: rank 0 at step 3, {place}"
    assert (merged.rank, merged.log) == (1, "rank-1.log")
    assert merge([waits, word(Outcome.CANCELLED)]) == waits

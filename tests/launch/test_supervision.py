from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from waiting import DEADLINE_S, wait_until
from watching import is_running, read_pid

from scalelab.inputs.outcome import Outcome
from scalelab.launch import supervision
from scalelab.launch.gang_agent import Cancellation
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import send
from scalelab.launch.stall import is_stopped
from scalelab.launch.supervision import Supervisor, Watch
from scalelab.launch.timing import Limits
from scalelab.records.attempt import AttemptResult

LIMITS = Limits(
    timeout_s=math.inf, stall_factor=20, stall_floor_s=60, start_up_s=60, grace_s=0.1
)


class Silent(Watch):
    """Processes that a signal would kill."""

    def __init__(self, board: ProgressBoard) -> None:
        super().__init__(board)
        self.stack_dump_signal = None


class PlayedServer:
    """The far end of a channel, played by the test; its processes are real."""

    def __init__(
        self,
        log_directory: Path,
        limits: Limits = LIMITS,
        ranks: tuple[Any, ...] = (0,),
    ) -> None:
        near, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = self.sleep()
        self.board = ProgressBoard(len(ranks))
        self.descriptor = os.pidfd_open(self.process.pid)
        self.supervisor = Supervisor(
            channel=near,
            server=self.descriptor,
            explain_death=lambda: "the server was killed",
            ranks=ranks,
            board=self.board,
            limits=limits,
            log=lambda rank: log_directory / f"rank-{rank}.log",
            device_type="cpu",
            watch=Silent(self.board),
        )
        self._children = [self.process]

    @staticmethod
    def sleep(*prefix: str) -> subprocess.Popen[bytes]:
        code = "; ".join(
            (*prefix, "import time", "print(flush=True)", "time.sleep(600)")
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], process_group=0, stdout=subprocess.PIPE
        )
        process.stdout.readline()
        return process

    def start(self, rank: int, *prefix: str) -> subprocess.Popen[bytes]:
        process = self.sleep(*prefix)
        self._children.append(process)
        descriptor = os.pidfd_open(process.pid)
        message = {"kind": "started", "rank": rank, "pid": process.pid}
        send(self.channel, message, [descriptor])
        os.close(descriptor)
        return process

    def tell(self, **message: object) -> None:
        send(self.channel, message)

    def close(self) -> None:
        for process in self._children:
            process.kill()
            process.wait()
            process.stdout.close()
        self.channel.close()
        self.board.close()
        os.close(self.descriptor)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    played = []

    def start(**given: Limits | tuple[int, int]) -> Popen | PlayedServer:
        played.append(PlayedServer(tmp_path, **given))
        return played[-1]

    yield start
    for server in played:
        server.close()


def limits(**given: float) -> Limits:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__slots__}
    return Limits(**{**values, **given})


@pytest.mark.slow
def test_stopped_rank_is_found_stalled(start: Any, make_spec: Any) -> None:
    spec = make_spec("train", stall_floor_s=0.8, stall_factor=5)
    attempt = start(spec)
    pids = [read_pid(spec, f"rank-{rank}") for rank in range(2)]
    os.kill(pids[1], signal.SIGSTOP)
    result = attempt.result(DEADLINE_S)
    assert (result.outcome, result.rank) == (Outcome.STALLED, 1)
    assert result.reason.startswith("no progress for ")
    limit = "(the limit is 5 median steps, at least measure.stall_timeout=0.8 s)"
    assert limit in result.reason
    assert result.reason.endswith("(stopped by a signal)")
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_cancelled_node_names_a_rank_that_is_halted(
    agent: Any, start: Any, make_spec: Any
) -> None:
    spec = make_spec("train")
    attempt = start(spec)
    pids = [read_pid(spec, f"rank-{rank}") for rank in range(2)]
    os.kill(pids[1], signal.SIGSTOP)
    wait_until(lambda: is_stopped(pids[1]), "the rank is halted")
    agent.cancel(spec.attempt_id, "node 1 of the attempt ended")
    result = attempt.result(DEADLINE_S)
    assert (result.outcome, result.rank) == (Outcome.CANCELLED, 1)
    assert result.reason == "node 1 of the attempt ended"
    assert str(result.traceback).endswith("(stopped by a signal)")
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_hanging_rank_shows_where_it_hangs(agent: Any, make_spec: Any) -> None:
    result = agent.run(make_spec("hang", stall_floor_s=0.8, culprit=1), 0, None)
    assert result.outcome is Outcome.STALLED
    assert "rank 0 at step 20, rank 1 at step 20" in result.reason
    assert "Stack of rank 0:" in result.traceback
    assert "Stack of rank 1:" in result.traceback
    assert "in hang_here" in result.traceback


@pytest.mark.slow
def test_the_first_step_may_take_longer_than_later_ones(
    agent: Any, make_spec: Any
) -> None:
    spec = make_spec("start_slowly", import_s=3.0, stall_floor_s=1.5)
    assert agent.run(spec, 0, None).outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_a_start_that_hangs_is_ended_and_told_the_key(
    agent: Any, make_spec: Any
) -> None:
    spec = make_spec("start_slowly", import_s=600.0, start_up_timeout_s=1.0)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.STALLED
    limit = "(the limit is measure.start_up_timeout=1 s to the first step)"
    assert limit in result.reason
    assert "rank 0 at step 0, rank 1 at step 0" in result.reason


PAUSED_S = 6.0


@pytest.mark.slow
def test_a_pause_of_all_processes_is_no_silence(play: Any) -> None:
    server = play(limits=limits(stall_floor_s=3.0, timeout_s=5.0))
    process = server.start(0)
    report = server.board.reporter(0)
    report(1)

    def rank() -> None:
        pause = f"kill -STOP {os.getpid()}; sleep {PAUSED_S}; kill -CONT {os.getpid()}"
        subprocess.run(["sh", "-c", pause], check=True)
        time.sleep(0.5)  # what comes next takes a moment; the supervisor looks first
        report(2)
        server.tell(kind="returned", rank=0, result={"outcome": "completed"})
        server.tell(kind="exited", rank=0, status=0)

    thread = threading.Thread(target=rank)
    thread.start()
    result = server.supervisor.supervise()
    thread.join()
    process.kill()
    assert result.outcome is Outcome.COMPLETED, result.reason
    assert result.measurements["validity"] == ["host_paused"]


@pytest.mark.slow
def test_an_end_that_takes_long_is_no_pause(play: Any) -> None:
    server = play(limits=limits(timeout_s=0.5, grace_s=4.0))
    process = server.start(0, "import signal", "signal.signal(15, signal.SIG_IGN)")
    server.board.reporter(0)(1)
    result = supervise_and_reap(server, process)
    assert result.outcome is Outcome.TIMED_OUT
    assert "validity" not in result.measurements


@pytest.mark.slow
def test_rank_that_falls_behind_is_stalled_though_the_other_goes_on(
    agent: Any, make_spec: Any
) -> None:
    spec = make_spec("fall_behind", stall_floor_s=0.8, culprit=0)
    result = agent.run(spec, 0, None)
    assert (result.outcome, result.rank) == (Outcome.STALLED, 0)
    assert "rank 0 at step 1," in result.reason


@pytest.mark.slow
def test_ranks_that_wait_for_a_busy_one_are_not_stalled(
    agent: Any, make_spec: Any
) -> None:
    result = agent.run(make_spec("wait_for_slow_rank", stall_floor_s=1), 0, None)
    assert result.outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_limit_grows_with_the_median_step(play: Any) -> None:
    server = play(limits=limits(stall_floor_s=0.2, stall_factor=50))
    process = server.start(0)
    report = server.board.reporter(0)
    for step in range(1, 6):
        report(step)
        time.sleep(0.05)
    started = time.monotonic()
    result = supervise_and_reap(server, process)
    assert result.outcome is Outcome.STALLED
    assert time.monotonic() - started > 1.5


def supervise_and_reap(server: PlayedServer, process: Popen) -> AttemptResult:
    """Supervise while a thread plays the server's part: reap and report."""

    def reap() -> None:
        status = process.wait()
        server.tell(kind="exited", rank=0, status=status)

    reaper = threading.Thread(target=reap)
    reaper.start()
    result = server.supervisor.supervise()
    reaper.join()
    return result


def test_timeout_and_other_endings_keep_the_first_word(
    play: Callable[..., Any],
) -> None:
    server = play(limits=limits(timeout_s=0.1))
    result = supervise_and_reap(server, server.start(0))
    assert result.outcome is Outcome.TIMED_OUT


def test_end_after_a_failure_does_not_hide_it(play: Callable[..., Any]) -> None:
    server = play(ranks=(0, 1))
    server.start(0)
    server.start(1)
    for rank in (1, 0):
        server.tell(kind="exited", rank=rank, status=1)
    supervisor = server.supervisor
    result = supervisor.supervise()
    supervisor.end(AttemptResult(outcome=Outcome.CANCELLED, reason="late"))
    assert (result.rank, result.outcome) == (1, Outcome.FAILED)


@pytest.mark.slow
def test_echo_alone_is_reported_after_a_while(play: Any) -> None:
    server = play()
    process = server.start(0)
    server.tell(
        kind="failed",
        failure={
            "rank": 0,
            "at_s": time.monotonic(),
            "outcome": "failed",
            "summary": "raised RuntimeError: Connection closed by peer",
            "traceback": "Traceback\nRuntimeError: Connection closed by peer",
        },
    )
    result = supervise_and_reap(server, process)
    assert result.outcome is Outcome.FAILED
    assert result.reason == "rank 0 raised RuntimeError: Connection closed by peer"


def test_server_that_starts_nothing_is_a_node_failure_and_is_killed(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_FORK_PATIENCE_S", 0.2)
    server = play()
    result = server.supervisor.supervise()
    assert result == AttemptResult(
        outcome=Outcome.NODE_FAIL, reason="the rank server does not answer"
    )
    assert server.process.wait(DEADLINE_S) == -signal.SIGKILL


def test_server_that_does_not_reap_is_killed(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_KILL_PATIENCE_S", 0.2)
    server = play(limits=limits(timeout_s=0.1))
    server.start(0)
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.TIMED_OUT
    assert server.process.wait(DEADLINE_S) == -signal.SIGKILL


def test_process_that_survives_sigkill_is_given_up(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_KILL_PATIENCE_S", 0.2)
    monkeypatch.setattr(supervision, "signal_group", lambda pid, number: None)
    server = play(limits=limits(timeout_s=0.1))
    process = server.start(0)
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.NODE_FAIL
    assert result.reason == f"processes do not end after SIGKILL: {process.pid}"


def test_death_of_the_server_ends_what_it_started(play: Callable[..., Any]) -> None:
    server = play(ranks=(0, 1))
    process = server.start(0)
    server.process.kill()
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.NODE_FAIL
    assert result.reason == "the server was killed"
    assert process.wait(DEADLINE_S) < 0


def test_server_that_closes_the_channel_is_as_good_as_dead(
    play: Callable[..., Any],
) -> None:
    server = play()
    process = server.start(0)
    server.channel.close()
    assert server.supervisor.supervise().reason == "the server was killed"
    assert process.wait(DEADLINE_S) < 0


def test_last_words_of_a_server_are_heard(play: Callable[..., Any]) -> None:
    server = play()
    server.start(0)
    server.tell(kind="returned", rank=0, result={"outcome": "completed"})
    server.tell(kind="exited", rank=0, status=0)
    server.channel.close()
    server.process.kill()
    server.process.wait()
    assert server.supervisor.supervise().outcome is Outcome.COMPLETED


@pytest.mark.parametrize("ranks", [(0, 1), (2, 3)], ids=["first", "other"])
def test_server_that_dies_before_it_forks_is_a_node_failure(
    play: Callable[..., Any], ranks: tuple[int, int]
) -> None:
    server = play(ranks=ranks)
    server.process.kill()
    server.process.wait()
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.NODE_FAIL
    assert result.reason == "the server was killed"


def test_server_that_dies_between_two_forks_is_a_node_failure(
    play: Callable[..., Any],
) -> None:
    server = play(ranks=(0, 1))
    server.start(0)
    server.tell(kind="returned", rank=0, result={"outcome": "completed"})
    server.tell(kind="exited", rank=0, status=0)
    server.channel.close()
    assert server.supervisor.supervise().outcome is Outcome.NODE_FAIL


def test_rank_that_is_killed_after_it_has_returned_has_not_ended_well(
    play: Callable[..., Any],
) -> None:
    server = play()
    server.start(0)
    server.tell(kind="returned", rank=0, result={"outcome": "completed"})
    server.tell(kind="exited", rank=0, status=-signal.SIGKILL)
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.FAILED
    assert result.reason == "rank 0 was killed by SIGKILL"


def test_refusal_is_a_node_failure(play: Callable[..., Any]) -> None:
    server = play()
    server.tell(kind="refused", reason="no more processes")
    result = server.supervisor.supervise()
    assert result.outcome is Outcome.NODE_FAIL
    assert result.reason == "the node cannot start processes: no more processes"


def test_process_that_starts_during_the_end_is_killed(play: Callable[..., Any]) -> None:
    server = play()
    server.supervisor.end(AttemptResult(outcome=Outcome.CANCELLED, reason="stop"))
    process = server.start(0)
    assert supervise_and_reap(server, process).outcome is Outcome.CANCELLED
    assert process.returncode == -signal.SIGKILL


def test_cancellation_wakes_its_descriptor_once() -> None:
    cancellation = Cancellation()
    cancellation.request("first")
    cancellation.request("second")
    assert cancellation.reason == "first"
    assert select.select([cancellation.descriptor], [], [], 0)[0]
    cancellation.close()
    cancellation.request("third")
    assert cancellation.reason == "first"

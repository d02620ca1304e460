"""The supervision of an attempt's processes on one node, until all have ended."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalelab.inputs.outcome import Outcome
from scalelab.launch.ending import Limits, Processes
from scalelab.launch.host_memory import oom_kill_count
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import receive
from scalelab.launch.stall import Member, StallWatch, WakingTime
from scalelab.launch.timing import with_validity
from scalelab.launch.verdict import (
    NO_RESULT,
    RankFailure,
    after_oom_kills,
    first_cause,
    from_exit,
)
from scalelab.records.attempt import AttemptResult

# A rank that lost its peer may report before the peer: wait this long for the cause.
_SETTLE_S = 1.0
# A rank server forks in milliseconds, and under heavy load within seconds.
_FORK_PATIENCE_S = 60.0
_LOOK_EVERY_S = 1.0

ExplainExit = Callable[[int, float, int, str, Path, int], RankFailure]
Conclude = Callable[[int], AttemptResult | None]


class Supervisor:
    """The supervisor of an attempt's processes, which makes one result of their ends.

    Parameters
    ----------
    channel
        The attempt's channel; closed at the end, which kills whatever is left.
    stack_dump_signal
        Signal at which a rank writes its stacks to its log; None where the signal
        would kill the process.
    conclude
        Called with the rank of a process that has exited with status 0 without a
        message; returns the attempt's result, or None to wait for the other processes.
        Without it such an exit is a failure.
    """

    def __init__(
        self,
        *,
        channel: socket.socket,
        server: int,
        explain_death: Callable[[], str],
        ranks: Sequence[int],
        board: ProgressBoard,
        limits: Limits,
        log: Callable[[int], Path],
        device_type: str,
        stack_dump_signal: int | None,
        explain_exit: ExplainExit = from_exit,
        conclude: Conclude | None = None,
    ) -> None:
        self._explain_exit = explain_exit
        self._conclude = conclude
        self._channel = channel
        self._server = server
        self._explain_death = explain_death
        self._rows = {rank: row for row, rank in enumerate(ranks)}
        self._limits = limits
        self._log = log
        self._device_type = device_type
        self._time = WakingTime(_LOOK_EVERY_S)
        self._stall_watch = StallWatch(
            board=board,
            rows=self._rows,
            time=self._time,
            factor=limits.stall_factor,
            floor_s=limits.stall_floor_s,
            start_up_s=limits.start_up_s,
            log=log,
            stack_dump_signal=stack_dump_signal,
        )
        self._started_s = self._heard_s = time.monotonic()
        self._oom_kills = oom_kill_count()
        self._processes = Processes(ranks, limits.grace_s)
        self._returned: dict[int, AttemptResult | None] = {}
        self._ended: set[int] = set()
        self._failures: list[RankFailure] = []
        self._cause: AttemptResult | None = None
        self._settle_at: float | None = None
        self._validity: set[str] = set()
        self._selector = selectors.DefaultSelector()
        channel.setblocking(False)
        self.watch(channel.fileno(), self._on_channel)
        self.watch(server, self._on_server_death)

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler``, which may call :meth:`end`, whenever there is input."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    @property
    def pids(self) -> list[int]:
        """The processes that have started and not ended, by rank."""
        return [member.pid for _, member in sorted(self._processes.live.items())]

    def supervise(self) -> AttemptResult:
        """Wait until every process has ended, and return the attempt's result."""
        try:
            while self._processes.expected:
                for key, _ in self._selector.select(self._patience_s()):
                    # An earlier event of the batch may have unregistered this one.
                    if key.fd in self._selector.get_map():
                        key.data()
                self._look()
        finally:
            self._selector.close()
            self._channel.close()
            self._processes.close()
        result = self._result()
        for reason in sorted(self._validity):
            result = with_validity(result, reason)
        return result

    def end(
        self,
        result: AttemptResult,
        *,
        grace_s: float | None = None,
        saves: bool = False,
    ) -> None:
        """End the processes with this result, unless one of them has failed before.

        One that has only lost its connection to another has not: this may be why.
        """
        if self._processes.ending_since_s is None:
            has_failed = not all(failure.is_echo for failure in self._failures)
            if not has_failed:
                self._cause = result
            if saves and self._limits.stop is not None and not has_failed:
                self._processes.ask_to_stop(self._limits.stop)
            else:
                self._processes.terminate(grace_s)

    def cancel(self, reason: str, *, saves: bool = False) -> None:
        """End the processes of a cancelled attempt.

        The result names a rank that a signal has stopped: ranks of other nodes may have
        waited for it.
        """
        result = AttemptResult(outcome=Outcome.CANCELLED, reason=reason)
        if halted := self._stall_watch.halted(self._processes.live):
            rank, place = halted
            log = self._log(rank).name
            result = replace(result, rank=rank, traceback=place, log=log)
        self.end(result, saves=saves)

    # Messages and events.

    def _on_channel(self) -> None:
        with suppress(BlockingIOError):
            while True:
                message, descriptors = receive(self._channel)
                if message is None:
                    self._on_server_death()
                    return
                self._heard(message, descriptors)

    def _heard(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self._heard_s = time.monotonic()
        match message["kind"]:
            case "started":
                process = Member(message["pid"], descriptors[0])
                self._processes.add(message["rank"], process)
            case "returned":
                values = message["result"]
                self._returned[message["rank"]] = (
                    None if values is None else AttemptResult.from_json(values)
                )
            case "failed":
                self._failed(RankFailure.from_json(message["failure"]))
            case "exited":
                self._exited(message["rank"], message["status"])
            case "unpinned":
                self._validity.add("unexpected_placement")
            case "refused":
                self._processes.expect_no_more()
                reason = f"the node cannot start processes: {message['reason']}"
                self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))

    def _exited(self, rank: int, status: int) -> None:
        self._processes.expected.discard(rank)
        self._ended.add(rank)
        has_failed = any(failure.rank == rank for failure in self._failures)
        if has_failed or self._processes.ending_since_s is not None:
            return
        if status == 0 and (rank in self._returned or self._conclude is not None):
            if self._conclude is not None and (result := self._conclude(rank)):
                self.end(result)
            return
        self._failed(
            self._explain_exit(
                rank,
                time.monotonic(),
                status,
                self._device_type,
                self._log(rank),
                oom_kill_count() - self._oom_kills,
            )
        )

    def _failed(self, failure: RankFailure) -> None:
        ending_since_s = self._processes.ending_since_s
        if ending_since_s is not None and failure.at_s > ending_since_s:
            return
        self._failures.append(failure)
        if not failure.is_echo:
            self._processes.terminate()
        elif self._settle_at is None:
            self._settle_at = time.monotonic() + _SETTLE_S

    def _on_server_death(self) -> None:
        self._selector.unregister(self._server)
        # Messages from before the server's death still count.
        if self._channel.fileno() in self._selector.get_map():
            self._selector.unregister(self._channel)
            with suppress(BlockingIOError):
                while (heard := receive(self._channel))[0] is not None:
                    self._heard(heard[0], heard[1])
        self._processes.expect_no_more()
        is_ending = self._processes.ending_since_s is not None
        if self._ended == set(self._rows) or (
            is_ending and not self._processes.expected
        ):
            return
        reason = self._explain_death()
        self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason), grace_s=0)
        self._processes.kill()
        for rank, member in self._processes.live.items():
            self.watch(member.descriptor, self._noticer(rank, member))

    def _noticer(self, rank: int, member: Member) -> Callable[[], None]:
        def notice() -> None:
            self._selector.unregister(member.descriptor)
            self._processes.expected.discard(rank)

        return notice

    # Time limits, and the end of the processes.

    def _look(self) -> None:
        paused_s = self._time.paused_s
        waking_s = self._time.look()
        if self._time.paused_s > paused_s and self._stall_watch.has_begun:
            self._validity.add("host_paused")
        self._judge(waking_s)

    def _judge(self, waking_s: float) -> None:
        """End what is due; ``waking_s`` is the time without the own pauses."""
        now = time.monotonic()
        if self._processes.ending_since_s is not None:
            if self._processes.signal_in_time(now):
                self._give_up()
        elif self._settle_at is not None and now >= self._settle_at:
            self._processes.terminate()
        elif self._limits.timeout_s is not None and (
            waking_s >= self._started_s + self._limits.timeout_s
        ):
            reason = f"did not end within timeout_s={self._limits.timeout_s:g} s"
            self.end(AttemptResult(outcome=Outcome.TIMED_OUT, reason=reason))
        elif self._limits.deadline_s is not None and now >= self._limits.deadline_s:
            reason = "Asked to end: the walltime of its nodes is nearly up."
            result = AttemptResult(outcome=Outcome.PREEMPTED, reason=reason)
            self.end(result, saves=True)
        elif (
            not self._processes.expected <= set(self._processes.started)
            and waking_s >= self._started_s + _FORK_PATIENCE_S
        ):
            reason = "the rank server does not answer"
            self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))
            self._kill_server()
        elif stall := self._stall_watch.find(
            self._processes.live, self._heard_s, waking_s
        ):
            self.end(stall, grace_s=0)

    def _give_up(self) -> None:
        """Stop waiting for processes that have been killed in vain."""
        left = self._processes.survivors()
        if not left:
            self._kill_server()
            return
        self._cause = AttemptResult(
            outcome=Outcome.NODE_FAIL,
            reason="processes do not end after SIGKILL: "
            + ", ".join(str(member.pid) for member in left),
        )
        self._processes.expected.clear()

    def _kill_server(self) -> None:
        """Kill a server that hangs; the processes that it has started die with it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._server, signal.SIGKILL)

    def _patience_s(self) -> float:
        """Return the seconds until the next time limit has to be checked."""
        now = time.monotonic()
        if self._processes.ending_since_s is not None:
            return min(_LOOK_EVERY_S, max(0.0, self._processes.deadline_s - now))
        waking_s = self._time.of(now)
        patience = [_LOOK_EVERY_S, self._stall_watch.next_look_s(waking_s) - waking_s]
        if self._limits.timeout_s is not None:
            patience.append(self._time.left_s(self._started_s, self._limits.timeout_s))
        if self._settle_at is not None:
            patience.append(self._settle_at - now)
        if self._limits.deadline_s is not None:
            patience.append(self._limits.deadline_s - now)
        return max(0.0, min(patience))

    def _result(self) -> AttemptResult:
        if self._cause is not None:
            return self._cause
        if self._failures:
            cause = first_cause(self._failures)
            rose = oom_kill_count() - self._oom_kills
            return after_oom_kills(cause, rose).result(self._log(cause.rank))
        if 0 not in self._rows:
            return AttemptResult(outcome=Outcome.COMPLETED)
        return self._returned[0] or replace(NO_RESULT, log=self._log(0).name)

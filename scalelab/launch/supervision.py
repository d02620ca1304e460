"""The supervisor of an attempt's processes on one node, until all have ended."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalelab.inputs.outcome import Outcome
from scalelab.launch.host_memory import oom_kill_count
from scalelab.launch.process_tree import signal_group
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import receive
from scalelab.launch.stall import Member, StallWatch, has_ended
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
# A process stuck in the kernel (a dead network file system) outlives SIGKILL.
_KILL_PATIENCE_S = 30.0

ExplainExit = Callable[[int, float, int, str, Path, int], RankFailure]
Conclude = Callable[[int], AttemptResult | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits at which an attempt is ended although nothing has failed.

    Parameters
    ----------
    timeout_s
        Seconds from the launch; None: never.
    stall_factor, stall_floor_s
        As in :class:`scalelab.records.attempt.AttemptSpec`.
    grace_s
        Seconds between SIGTERM and SIGKILL.
    start_up_s
        Seconds that must pass without a report, if more, while no step time is known.
    """

    timeout_s: float | None
    stall_factor: float
    stall_floor_s: float
    grace_s: float
    start_up_s: float = 0.0


class Cancellation:
    """A request from another thread to end an attempt, even before it has started."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.reason: str | None = None
        self.outcome = Outcome.CANCELLED
        self._lock = threading.Lock()
        self._is_open = True

    def request(self, reason: str, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Ask for the end; only the first reason and its outcome are kept."""
        with self._lock:
            if self.reason is None and self._is_open:
                self.reason, self.outcome = reason, outcome
                os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        """Close the descriptor; later requests are ignored."""
        with self._lock:
            self._is_open = False
            os.close(self.descriptor)


class Supervisor:
    """Waits for the processes of an attempt, ends them, and returns one result.

    Parameters
    ----------
    channel
        The attempt's channel; closed at the end, which kills whatever is left.
    server
        Descriptor (pidfd) of the rank server.
    explain_death
        Returns a clause that says how the server ended.
    ranks
        The processes expected, in the order of the board's rows.
    board
        The progress board of the processes.
    limits
        Time limits at which they are ended.
    log
        Returns the log of a rank.
    device_type
        ``cpu`` or ``cuda``.
    stack_dump_signal
        Signal at which a rank writes its stacks to its log; None where the signal
        would kill the process.
    explain_exit
        Returns the failure of a process that has ended without a message.
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
        self._stall_watch = StallWatch(
            board=board,
            rows=self._rows,
            factor=limits.stall_factor,
            floor_s=limits.stall_floor_s,
            start_up_s=limits.start_up_s,
            log=log,
            stack_dump_signal=stack_dump_signal,
        )
        self._started_s = self._heard_s = time.monotonic()
        self._oom_kills = oom_kill_count()
        self._expected = set(ranks)
        self._members: dict[int, Member] = {}
        self._returned: dict[int, AttemptResult | None] = {}
        self._failures: list[RankFailure] = []
        self._cause: AttemptResult | None = None
        self._settle_at: float | None = None
        self._ending_s: float | None = None
        self._kill_at: float | None = None
        self.unpinned: set[int] = set()
        self._selector = selectors.DefaultSelector()
        channel.setblocking(False)
        self.watch(channel.fileno(), self._on_channel)
        self.watch(server, self._on_server_death)

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler``, which may call :meth:`end`, whenever there is input."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def supervise(self) -> AttemptResult:
        """Wait until every process has ended, and return the attempt's result."""
        try:
            while self._expected:
                for key, _ in self._selector.select(self._patience_s()):
                    # An earlier event of the batch may have unregistered this one.
                    if key.fd in self._selector.get_map():
                        key.data()
                self._judge(time.monotonic())
        finally:
            self._selector.close()
            self._channel.close()
            for member in self._members.values():
                os.close(member.descriptor)
        return self._result()

    def end(self, result: AttemptResult, *, grace_s: float | None = None) -> None:
        """End the processes with this result, unless one of them has failed before.

        Parameters
        ----------
        result
            The attempt's result.
        grace_s
            Seconds between SIGTERM and SIGKILL; None: as in the limits.
        """
        if self._ending_s is None:
            if not self._failures:
                self._cause = result
            self._begin_ending(self._limits.grace_s if grace_s is None else grace_s)

    def cancel(self, reason: str) -> None:
        """End the processes of a cancelled attempt.

        The result names a rank that a signal has stopped: ranks of other nodes may have
        waited for it.

        Parameters
        ----------
        reason
            Why the attempt ends.
        """
        result = AttemptResult(outcome=Outcome.CANCELLED, reason=reason)
        if halted := self._stall_watch.halted(self._live()):
            rank, place = halted
            log = self._log(rank).name
            result = replace(result, rank=rank, traceback=place, log=log)
        self.end(result)

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
                self._started(message["rank"], message["pid"], descriptors[0])
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
                self.unpinned.add(message["rank"])
            case "refused":
                self._expected &= set(self._members)
                reason = f"the node cannot start processes: {message['reason']}"
                self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))

    def _started(self, rank: int, pid: int, descriptor: int) -> None:
        self._members[rank] = Member(pid, descriptor)
        if self._ending_s is not None:
            signal_group(pid, signal.SIGKILL)

    def _exited(self, rank: int, status: int) -> None:
        self._expected.discard(rank)
        spoke = rank in self._returned or any(
            failure.rank == rank for failure in self._failures
        )
        if spoke or self._ending_s is not None:
            return
        if status == 0 and self._conclude is not None:
            if result := self._conclude(rank):
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
        if self._ending_s is not None and failure.at_s > self._ending_s:
            return
        self._failures.append(failure)
        if not failure.is_echo:
            self._begin_ending(self._limits.grace_s)
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
        self._expected &= set(self._members)
        if not self._expected:
            return
        reason = self._explain_death()
        self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason), grace_s=0)
        for rank, member in self._live().items():
            signal_group(member.pid, signal.SIGKILL)
            self.watch(member.descriptor, self._noticer(rank, member))

    def _noticer(self, rank: int, member: Member) -> Callable[[], None]:
        def notice() -> None:
            self._selector.unregister(member.descriptor)
            self._expected.discard(rank)

        return notice

    # Time limits, and the end of the processes.

    def _live(self) -> dict[int, Member]:
        return {
            rank: self._members[rank] for rank in self._expected & set(self._members)
        }

    def _judge(self, now: float) -> None:
        if self._ending_s is not None:
            self._kill_what_is_left(now)
        elif self._settle_at is not None and now >= self._settle_at:
            self._begin_ending(self._limits.grace_s)
        elif self._limits.timeout_s is not None and (
            now >= self._started_s + self._limits.timeout_s
        ):
            reason = f"did not end within timeout_s={self._limits.timeout_s:g} s"
            self.end(AttemptResult(outcome=Outcome.TIMED_OUT, reason=reason))
        elif not self._members and now >= self._started_s + self._stall_watch.floor_s:
            reason = "the rank server does not answer"
            self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))
            self._kill_server()
        elif stall := self._stall_watch.find(self._live(), self._heard_s, now):
            self.end(stall, grace_s=0)

    def _begin_ending(self, grace_s: float) -> None:
        if self._ending_s is not None:
            return
        self._ending_s = time.monotonic()
        self._kill_at = self._ending_s + grace_s
        for member in self._live().values():
            signal_group(member.pid, signal.SIGTERM)

    def _kill_what_is_left(self, now: float) -> None:
        assert self._ending_s is not None
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for member in self._live().values():
                signal_group(member.pid, signal.SIGKILL)
        elif now >= self._ending_s + self._limits.grace_s + _KILL_PATIENCE_S:
            left = [member for member in self._live().values() if not has_ended(member)]
            if not left:
                self._kill_server()
                return
            self._cause = AttemptResult(
                outcome=Outcome.NODE_FAIL,
                reason="processes do not end after SIGKILL: "
                + ", ".join(str(member.pid) for member in left),
            )
            self._expected.clear()

    def _kill_server(self) -> None:
        """Kill a server that hangs; the processes that it has started die with it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._server, signal.SIGKILL)

    def _patience_s(self) -> float:
        """Return the seconds until the next time limit has to be checked."""
        now = time.monotonic()
        if self._ending_s is not None:
            last = self._ending_s + self._limits.grace_s + _KILL_PATIENCE_S
            return max(0.0, (last if self._kill_at is None else self._kill_at) - now)
        moments = [self._stall_watch.next_look_s(now)]
        if self._settle_at is not None:
            moments.append(self._settle_at)
        if self._limits.timeout_s is not None:
            moments.append(self._started_s + self._limits.timeout_s)
        return max(0.0, min(moments) - now)

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

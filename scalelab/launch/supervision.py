"""The supervision of an attempt's processes on one node, until all have ended."""

from __future__ import annotations

import math
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scalelab.experiment.program import CommandProgram, StopRequest
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.verdict import from_command_exit
from scalelab.launch.neighbours import Neighbours
from scalelab.launch.process_tree import oom_kill_count, signal_group
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import STACK_DUMP_SIGNAL, receive
from scalelab.launch.stall import Member, StallWatch, WakingTime
from scalelab.launch.timing import Limits, with_validity
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
# A process stuck in the kernel (a dead network file system) outlives SIGKILL.
_KILL_PATIENCE_S = 30.0


class Watch:
    """What is particular to the processes of an attempt: ranks of a workload.

    Or those of a command, on a node that does not read what they report.
    """

    def __init__(
        self, board: ProgressBoard, command: CommandProgram | None = None
    ) -> None:
        self._board = board
        # Describes the end of a process that has failed without a message.
        self.explain_exit: Callable[..., RankFailure] = (
            from_exit
            if command is None
            else partial(from_command_exit, code=command.code_directory)
        )
        # A process may exit with status 0 without a message: that is no failure.
        self.may_exit = command is not None
        # A rank writes its stacks to its log at it; None: it would kill the process.
        self.stack_dump_signal = STACK_DUMP_SIGNAL if command is None else None

    @property
    def ready_s(self) -> float | None:
        """When the first step began, by the monotonic clock; None where unknown."""
        return self._board.ready_s(0)

    def attach(self, supervisor: Supervisor) -> None:
        """Learn who supervises the processes, which have been asked for."""

    def look(self, pids: Sequence[int]) -> None:
        """Look at the processes, at least once a second."""

    def conclude(self, rank: int) -> AttemptResult | None:
        """Return the attempt's result now that a process has exited with status 0.

        None while there are other processes to wait for.
        """
        return None

    def pruned(self, reason: str) -> AttemptResult | None:
        """Return what was measured until now; None where the processes tell that."""
        return None

    def explained(self, result: AttemptResult) -> AttemptResult:
        """Return the attempt's result with what else is known of it."""
        return result

    def close(self) -> None:
        """Let go of all files."""


class Processes:
    """The processes of an attempt on one node, from their start until they have ended.

    Those that are expected have not ended, whether they have started or not.
    """

    def __init__(self, ranks: Iterable[int], grace_s: float) -> None:
        self.expected = set(ranks)
        self.started: dict[int, Member] = {}
        self.ending_since_s: float | None = None
        self._grace_s = grace_s
        self._due: list[tuple[float, signal.Signals]] = []
        self._given_up_s = 0.0

    @property
    def live(self) -> dict[int, Member]:
        """Those that have started and not ended, by rank."""
        ranks = self.expected & set(self.started)
        return {rank: self.started[rank] for rank in ranks}

    def add(self, rank: int, process: Member) -> None:
        """Learn that a process has started; kill it where all are being ended."""
        self.started[rank] = process
        if self.ending_since_s is not None:
            signal_group(process.pid, signal.SIGKILL)

    def expect_no_more(self) -> None:
        """Wait for none of those that have not started."""
        self.expected &= set(self.started)

    def end(
        self, grace_s: float | None = None, stop: StopRequest | None = None
    ) -> None:
        """Send SIGTERM, once, and let SIGKILL follow after ``grace_s`` seconds.

        With a ``stop`` each process is first asked to save what it has.
        """
        if self.ending_since_s is not None:
            return
        self.ending_since_s = now_s = time.monotonic()
        kill_at_s = now_s + (self._grace_s if grace_s is None else grace_s)
        if stop is None:
            self.send(signal.SIGTERM)
        else:
            for process in self.live.values():
                with suppress(ProcessLookupError):
                    number = signal.Signals[stop.signal]
                    signal.pidfd_send_signal(process.descriptor, number)
            self._due.append((now_s + stop.grace_s, signal.SIGTERM))
            kill_at_s += stop.grace_s

        self._due.append((kill_at_s, signal.SIGKILL))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the group of each live process."""
        for process in self.live.values():
            signal_group(process.pid, number)

    def send_in_time(self, now_s: float) -> bool:
        """Send the signals that are due; tell whether the wait after them is over."""
        while self._due and self._due[0][0] <= now_s:
            self._given_up_s = self._due[0][0] + _KILL_PATIENCE_S
            self.send(self._due.pop(0)[1])
        return not self._due and self._given_up_s <= now_s

    @property
    def deadline_s(self) -> float:
        """When the next signal is due, by the monotonic clock, or the wait is over."""
        return self._due[0][0] if self._due else self._given_up_s


class Supervisor:
    """The supervisor of an attempt's processes, which makes one result of their ends.

    It closes the attempt's channel at the end, which kills whatever is left. ``server``
    is the descriptor of the rank server's process.
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
        watch: Watch,
        gpus: Sequence[str] = (),
    ) -> None:
        self._channel = channel
        self._server = server
        self._explain_death = explain_death
        self._rows = {rank: row for row, rank in enumerate(ranks)}
        self._limits = limits
        self._log = log
        self._device_type = device_type
        self._watch = watch
        self._time = WakingTime(_LOOK_EVERY_S)
        self._stall_watch = StallWatch(
            board=board,
            rows=self._rows,
            time=self._time,
            limits=limits,
            log=log,
            stack_dump_signal=watch.stack_dump_signal,
        )

        self._started_s = self._heard_s = time.monotonic()
        self._oom_kills = oom_kill_count()
        self._neighbours = Neighbours(gpus)
        self._processes = Processes(ranks, limits.grace_s)
        self._returned: dict[int, AttemptResult | None] = {}
        self._ended: set[int] = set()
        self._failures: list[RankFailure] = []
        self._cause: AttemptResult | None = None
        self._settle_at_s = math.inf
        self._validity: set[str] = set()
        self._selector = selectors.DefaultSelector()
        channel.setblocking(False)
        self.listen(channel.fileno(), self._on_channel)
        self.listen(server, self._on_server_death)
        watch.attach(self)

    def listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler``, which may call :meth:`end`, whenever there is input."""
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def ignore(self, descriptor: int) -> None:
        """Listen to it no more."""
        self._selector.unregister(descriptor)

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
            for process in self._processes.started.values():
                os.close(process.descriptor)

        result = self._result()
        if result.outcome.is_measurement or result.outcome is Outcome.CANCELLED:
            columns = {**result.measurements, **self._neighbours.columns()}
            result = replace(result, measurements=columns)
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
            self._neighbours.look(self.pids, is_last=True)
            has_failed = not all(failure.is_echo for failure in self._failures)
            if not has_failed:
                self._cause = result
            may_save = saves and not has_failed
            self._processes.end(grace_s, self._limits.stop if may_save else None)

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
        if self._hear_all():
            self._on_server_death()

    def _hear_all(self) -> bool:
        # whether the rank server has closed the channel
        with suppress(BlockingIOError):
            while True:
                message, descriptors = receive(self._channel)
                if message is None:
                    return True
                self._heard(message, descriptors)
        return False

    def _heard(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self._heard_s = time.monotonic()
        match message["kind"]:
            case "started":
                process = Member(message["pid"], descriptors[0])
                self._processes.add(message["rank"], process)
            case "returned":
                values = message["result"]
                # The start of a process may be told after its end.
                if member := self._processes.started.get(message["rank"]):
                    self._neighbours.look([member.pid], is_last=True)
                self._returned[message["rank"]] = (
                    None if values is None else AttemptResult.from_json(values)
                )
            case "failed":
                failure = message["failure"]
                outcome = Outcome(failure["outcome"])
                self._failed(RankFailure(**{**failure, "outcome": outcome}))
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

        if status == 0 and (rank in self._returned or self._watch.may_exit):
            if result := self._watch.conclude(rank):
                self.end(result)
            return

        rose, log = oom_kill_count() - self._oom_kills, self._log(rank)
        now_s, device_type = time.monotonic(), self._device_type
        self._failed(
            self._watch.explain_exit(rank, now_s, status, device_type, log, rose)
        )

    def _failed(self, failure: RankFailure) -> None:
        ending_since_s = self._processes.ending_since_s
        if ending_since_s is not None and failure.at_s > ending_since_s:
            return
        self._failures.append(failure)
        if not failure.is_echo:
            self._processes.end()
        elif self._settle_at_s == math.inf:
            self._settle_at_s = time.monotonic() + _SETTLE_S

    def _on_server_death(self) -> None:
        self._selector.unregister(self._server)
        # Messages from before the server's death still count.
        if self._channel.fileno() in self._selector.get_map():
            self._selector.unregister(self._channel)
            self._hear_all()

        self._processes.expect_no_more()
        is_ending = self._processes.ending_since_s is not None

        is_over = is_ending and not self._processes.expected
        if is_over or self._ended == set(self._rows):
            return

        reason = self._explain_death()
        self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason), grace_s=0)
        self._processes.send(signal.SIGKILL)

        for rank, member in self._processes.live.items():
            self.listen(member.descriptor, partial(self._notice, rank, member))

    def _notice(self, rank: int, member: Member) -> None:
        self._selector.unregister(member.descriptor)
        self._processes.expected.discard(rank)

    # Time limits, and the end of the processes.

    def _look(self) -> None:
        paused_s = self._time.paused_s
        waking_s, now_s = self._time.look(), time.monotonic()
        self._neighbours.look(self.pids)
        if self._processes.ending_since_s is None:
            self._watch.look(self.pids)
        if self._time.paused_s > paused_s and self._stall_watch.has_begun:
            self._validity.add("host_paused")

        processes, limits = self._processes, self._limits
        if processes.ending_since_s is not None:
            if processes.send_in_time(now_s):
                self._give_up()
        elif now_s >= self._settle_at_s:
            processes.end()
        elif (
            not processes.expected <= set(processes.started)
            and waking_s >= self._started_s + _FORK_PATIENCE_S
        ):
            reason = "the rank server does not answer"
            self.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))
            self._kill_server()
        elif self._time.left_s(self._started_s, limits.timeout_s) <= 0:
            reason = f"did not end within timeout_s={limits.timeout_s:g} s"
            self.end(AttemptResult(outcome=Outcome.TIMED_OUT, reason=reason))
        elif now_s >= limits.deadline_s:
            reason = "Asked to end: the walltime of its nodes is nearly up."
            result = AttemptResult(outcome=Outcome.PREEMPTED, reason=reason)
            self.end(result, saves=True)
        elif stall := self._stall_watch.find(processes.live, self._heard_s, waking_s):
            self.end(stall, grace_s=0)

    def _give_up(self) -> None:
        # The rank server may hang, and not say that a process has ended.
        left = [
            str(member.pid)
            for member in self._processes.live.values()
            if not select.select([member.descriptor], [], [], 0)[0]
        ]
        if not left:
            self._kill_server()
            return

        reason = f"processes do not end after SIGKILL: {', '.join(left)}"
        self._cause = AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason)
        self._processes.expected.clear()

    def _kill_server(self) -> None:
        # The processes that it has started die with it.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._server, signal.SIGKILL)

    def _patience_s(self) -> float:
        now_s = time.monotonic()
        waking_s = self._time.of(now_s)
        left_s = min(
            self._time.left_s(self._started_s, self._limits.timeout_s),
            self._limits.deadline_s - now_s,
            self._stall_watch.next_look_s(waking_s) - waking_s,
            self._settle_at_s - now_s,
        )
        if self._processes.ending_since_s is not None:
            left_s = self._processes.deadline_s - now_s

        return max(0.0, min(_LOOK_EVERY_S, left_s))

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

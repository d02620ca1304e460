"""The end of an attempt's processes: what asks for it, and the signals that do it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from scalelab.experiment.program import StopRequest
from scalelab.inputs.outcome import Outcome
from scalelab.launch.process_tree import signal_group
from scalelab.launch.stall import Member, has_ended
from scalelab.records.attempt import AttemptSpec

# A process stuck in the kernel (a dead network file system) outlives SIGKILL.
_KILL_PATIENCE_S = 30.0
# Frameworks on a busy network file system are imported for minutes.
_START_UP_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits at which an attempt is ended although nothing has failed.

    Parameters
    ----------
    timeout_s
        Seconds from the launch; None: never.
    stop
        How the processes are asked to save what they have; None: they are not.
    deadline_s
        When to ask so because the walltime is up soon, on the monotonic clock; None:
        never.
    """

    timeout_s: float | None
    stall_factor: float
    stall_floor_s: float
    start_up_s: float
    grace_s: float
    stop: StopRequest | None = None
    deadline_s: float | None = None


def start_up_limit_s(spec: AttemptSpec) -> float:
    """Return how long an attempt may be silent before its first step."""
    asked_s = spec.trial.measurement.start_up_timeout_s
    return asked_s or max(_START_UP_S, spec.stall_floor_s or 0.0)


class Cancellation:
    """A request from another thread to end an attempt, even before it has started."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.reason: str | None = None
        self.outcome = Outcome.CANCELLED
        self.saves = False
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._is_open = True

    def request(
        self,
        reason: str,
        outcome: Outcome = Outcome.CANCELLED,
        *,
        saves: bool = False,
    ) -> None:
        """Request the end of the attempt; the first request counts."""
        with self._lock:
            if self.reason is None and self._is_open:
                self.reason, self.outcome, self.saves = reason, outcome, saves
                os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        """Close the descriptor; later requests are ignored."""
        with self._lock:
            self._is_open = False
            os.close(self.descriptor)
        self.is_over.set()


class Processes:
    """The processes of an attempt on one node, from their start until they have ended.

    Attributes
    ----------
    expected
        The ranks whose processes have not ended, whether they have started or not.
    started
        The processes that have started, by rank.
    ending_since_s
        When the first signal was sent, on the monotonic clock; None: none was.
    """

    def __init__(self, ranks: Iterable[int], grace_s: float) -> None:
        self.expected = set(ranks)
        self.started: dict[int, Member] = {}
        self.ending_since_s: float | None = None
        self._grace_s = grace_s
        self._due: list[tuple[float, signal.Signals]] = []
        self._given_up_s = 0.0

    @property
    def live(self) -> Mapping[int, Member]:
        """The processes that have started and not ended, by rank."""
        ranks = self.expected & set(self.started)
        return {rank: self.started[rank] for rank in ranks}

    def add(self, rank: int, process: Member) -> None:
        """Add a process that has started; kill it where the others are being ended."""
        self.started[rank] = process
        if self.ending_since_s is not None:
            signal_group(process.pid, signal.SIGKILL)

    def expect_no_more(self) -> None:
        """Expect no process that has not started yet."""
        self.expected &= set(self.started)

    def terminate(self, grace_s: float | None = None) -> None:
        """Send SIGTERM, once, and let SIGKILL follow after ``grace_s`` seconds."""
        if self.ending_since_s is None:
            self.ending_since_s = time.monotonic()
            grace_s = self._grace_s if grace_s is None else grace_s
            self._signal(signal.SIGTERM)
            self._end_in(grace_s, signal.SIGKILL)

    def ask_to_stop(self, stop: StopRequest) -> None:
        """Ask each process to save what it has; SIGTERM and SIGKILL follow."""
        if self.ending_since_s is None:
            self.ending_since_s = time.monotonic()
            for process in self.live.values():
                with suppress(ProcessLookupError):
                    number = signal.Signals[stop.signal]
                    signal.pidfd_send_signal(process.descriptor, number)
            self._end_in(stop.grace_s, signal.SIGTERM)
            self._end_in(stop.grace_s + self._grace_s, signal.SIGKILL)

    def _end_in(self, seconds: float, number: signal.Signals) -> None:
        assert self.ending_since_s is not None
        self._due.append((self.ending_since_s + seconds, number))
        self._given_up_s = self.ending_since_s + seconds + _KILL_PATIENCE_S

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def signal_in_time(self, now_s: float) -> bool:
        """Send the signals that are due; tell whether the wait after them is over."""
        while self._due and self._due[0][0] <= now_s:
            self._signal(self._due.pop(0)[1])
        return not self._due and self._given_up_s <= now_s

    @property
    def deadline_s(self) -> float:
        """When to call :meth:`signal_in_time` again, once they are being ended."""
        return self._due[0][0] if self._due else self._given_up_s

    def survivors(self) -> list[Member]:
        """Return the processes that run, whatever the rank server says of them."""
        return [process for process in self.live.values() if not has_ended(process)]

    def close(self) -> None:
        """Close the descriptors of the processes."""
        for process in self.started.values():
            os.close(process.descriptor)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.live.values():
            signal_group(process.pid, number)

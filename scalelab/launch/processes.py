"""The processes of an attempt on one node, and the signals that end them."""

import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from scalelab.experiment.program import StopRequest
from scalelab.launch.process_tree import signal_group
from scalelab.launch.stall import Member

# A process stuck in the kernel (a dead network file system) outlives SIGKILL.
_KILL_PATIENCE_S = 30.0


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

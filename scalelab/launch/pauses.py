"""Pauses of a watching process, which are no silence of what it watches."""

from __future__ import annotations

import time

_AT_EASE = 3.0  # times as long between two looks as planned, before it was a pause


class WakingTime:
    """The monotonic clock without the time for which this process stood still.

    A host that is suspended, or a process that is halted by a signal, hears nobody
    and gives nobody the chance to be heard. Only the watcher's own pauses are left out:
    what stands still while the watcher runs is silent.

    Parameters
    ----------
    beat_s
        Longest time between two calls of :meth:`look`, as planned.
    """

    def __init__(self, beat_s: float) -> None:
        self.beat_s = beat_s
        self._looked_s = time.monotonic()
        self._pauses: list[tuple[float, float]] = []

    @property
    def paused_s(self) -> float:
        """The length of all pauses."""
        return sum(end_s - begin_s for begin_s, end_s in self._pauses)

    def look(self) -> float:
        """Return the time now; a look that comes far too late ends a pause."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _AT_EASE * self.beat_s:
            self._pauses.append((self._looked_s + self.beat_s, now_s))
        self._looked_s = now_s
        return self.of(now_s)

    def of(self, moment_s: float) -> float:
        """Return a moment of the monotonic clock on this one."""
        return moment_s - sum(
            max(0.0, min(end_s, moment_s) - begin_s)
            for begin_s, end_s in self._pauses
            if begin_s < moment_s
        )

    def left_s(self, since_s: float, limit_s: float) -> float:
        """Return what is left of a time limit that began at a moment."""
        return self.of(since_s) + limit_s - self.of(time.monotonic())

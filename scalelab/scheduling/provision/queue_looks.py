"""The looks at a batch system's queue: soon after a change, then less often."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_LOOK_S = 0.5
"""Seconds from a change to the next look at the queue."""


class QueueLooks:
    """The times at which the batch system is asked about all jobs.

    Attributes
    ----------
    started_s
        When the latest look began, on the monotonic clock; 0: there was none.
    """

    def __init__(self, look: Callable[[], None], longest_s: float) -> None:
        self._look = look
        self._longest_s = longest_s
        self._next_s = 0.0
        self._every_s = FIRST_LOOK_S
        self._is_looking = False
        self.started_s = 0.0

    def hurry(self) -> None:
        """Look soon, and then less and less often, because a job has changed."""
        self._every_s = FIRST_LOOK_S
        self._next_s = min(self._next_s, time.monotonic() + FIRST_LOOK_S)

    def allow_at_once(self) -> None:
        """Let the next look be due at once."""
        self._next_s = 0.0

    def begin(self, now_s: float) -> None:
        """Look at the queue if that is due and the last look has been answered."""
        if not self._is_looking and now_s >= self._next_s:
            self._is_looking = True
            self.started_s = now_s
            self._look()
            self._next_s = now_s + self._every_s
            self._every_s = min(self._every_s * 2, self._longest_s)

    def end(self) -> None:
        """Record that the latest look has been answered."""
        self._is_looking = False

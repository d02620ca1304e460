"""Submission back-off: how soon to submit again after jobs failed in a row."""

from __future__ import annotations

import time

MAX_LOST = 8
"""Jobs lost in a row, without a trial measured in between, before it is no accident."""
MAX_FAILED_STARTS = 3
MAX_BUSY = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class SubmissionBackoff:
    """Counts jobs that failed in a row, and says whether to submit another one."""

    def __init__(self) -> None:
        self._num_lost = 0
        self._num_failed = 0
        self._num_busy = 0
        self._num_in_vain = 0
        self._next_try_s = 0.0
        self.words = ""
        self._final: str | None = None
        self._full: str | None = None

    @property
    def verdict(self) -> str | None:
        """The reason why no further job should be submitted; None: one may be."""
        return self._final or self._full

    def allow(self, now_s: float) -> bool:
        """Tell whether another job may be submitted, on the monotonic clock."""
        return self.verdict is None and now_s >= self._next_try_s

    def reset(self) -> None:
        """Start counting anew, since a trial was measured."""
        self.accepted()
        if self._final is None:
            self._num_lost = self._num_failed = 0
            self.words = ""

    def accepted(self) -> None:
        """Record that the batch system took a job, so it is not busy."""
        if self._num_busy:
            self._num_busy = self._num_in_vain = 0
            self.words = self._final or ""
            self._full = None

    def refused(
        self, words: str, *, is_busy: bool = False, has_jobs: bool = False
    ) -> None:
        """Count a job that the batch system refused, or that can never start."""
        said = f"The batch system refused a job: {words.rstrip('.')}."
        if not is_busy:
            self._count(said, 1, 1)
            return
        self.words = said
        self._num_busy += 1
        self._num_in_vain = 0 if has_jobs else self._num_in_vain + 1
        self._pause(self._num_busy)
        if self._num_in_vain >= MAX_BUSY:
            self._full = _in_a_row(said, self._num_in_vain)

    def failed_to_start(self, said: str, log: str) -> None:
        """Count a job whose nodes did not answer, with the end of its log."""
        self._num_failed += 1
        shown = f"\nThe end of its log:\n{log}" if log else "\nIts log is empty."
        self._count(f"{said}.{shown}", self._num_failed, MAX_FAILED_STARTS)

    def lost(self, said: str) -> None:
        """Count a job that ended while its nodes were in use."""
        self._num_lost += 1
        self._count(f"{said}.", self._num_lost, MAX_LOST)

    def _count(self, words: str, number: int, at_most: int) -> None:
        self.words = words
        if number >= at_most:
            self._final = self._final or _in_a_row(words, number)
        else:
            self._pause(number)

    def _pause(self, number: int) -> None:
        if number > 1:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(number - 2, 10))
            self._next_try_s = time.monotonic() + pause_s


def _in_a_row(words: str, number: int) -> str:
    return f"{words} That was so {number} times in a row." if number > 1 else words

"""Demand by node group: the nodes that trials need, and the back-off in asking."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.jobs import ProvisionedJob
from scalelab.site.batch_site import BatchSite

_WORN = 0.1
"""Part of its walltime that a job may have spent while it counts as new."""
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
        self._final = self._full = ""

    @property
    def verdict(self) -> str:
        """The reason why no further job should be submitted; empty: one may be."""
        return self._final or self._full

    def allow(self, now_s: float) -> bool:
        """Tell whether another job may be submitted, on the monotonic clock."""
        return not self.verdict and now_s >= self._next_try_s

    def reset(self) -> None:
        """Start counting anew, since a trial was measured."""
        self.accepted()
        if not self._final:
            self._num_lost = self._num_failed = 0
            self.words = ""

    def accepted(self) -> None:
        """Record that the batch system took a job, so it is not busy."""
        if self._num_busy:
            self._num_busy = self._num_in_vain = 0
            self.words, self._full = self._final, ""

    def refused(
        self, words: str, *, is_busy: bool = False, has_jobs: bool = False
    ) -> None:
        """Count a job that the batch system refused, or that can never start."""
        sentence = f"The batch system refused a job: {words.rstrip('.')}."
        if not is_busy:
            self._count(sentence, 1, 1)
            return

        self.words = sentence
        self._num_busy += 1
        self._num_in_vain = 0 if has_jobs else self._num_in_vain + 1
        self._pause(self._num_busy)

        if self._num_in_vain >= MAX_BUSY:
            self._full = _in_a_row(sentence, self._num_in_vain)

    def failed_to_start(self, reason: str, log: str) -> None:
        """Count a job whose nodes did not answer, with the end of its log."""
        self._num_failed += 1
        shown = f"\nThe end of its log:\n{log}" if log else "\nIts log is empty."
        self._count(f"{reason}.{shown}", self._num_failed, MAX_FAILED_STARTS)

    def lost(self, reason: str) -> None:
        """Count a job that ended while its nodes were in use."""
        self._num_lost += 1
        self._count(f"{reason}.", self._num_lost, MAX_LOST)

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


@dataclass(slots=True)
class GroupDemand:
    """The nodes of one group that trials need, and the back-off in asking for them."""

    site: BatchSite  # as it is for this group
    max_nodes: int
    backoff: SubmissionBackoff = field(default_factory=SubmissionBackoff)
    num_exchanged: int = 0

    @property
    def fresh(self) -> float:
        """Part of its walltime that a job has left at least while it counts as new.

        Less after every exchange that led to no trial: where nodes take long to join,
        or wait for each other, there are none that are newer.
        """
        return max(0.0, 1 - _WORN * 2.0**self.num_exchanged)

    def record_success(self) -> None:
        """Start counting anew, since a trial was measured."""
        self.backoff.reset()
        self.num_exchanged = 0

    def num_wanted(self, pool: Pool, *, is_stopped: bool) -> int:
        """Return the nodes that the trials of the group can use."""
        group = self.site.group
        waiting = {} if is_stopped else pool.placers[group].queue.allocations()
        num_devices = sum(
            request.world_size * count for request, count in waiting.items()
        )
        num_devices += pool.num_held_in(group)

        at_least = max((request.num_nodes for request in waiting), default=0)
        if self.site.provision == "one_job":
            return at_least or min(1, num_devices)

        useful = math.ceil(num_devices / self.site.devices_per_node)
        return min(self.max_nodes, max(at_least, useful))

    def spare(
        self,
        jobs: Sequence[ProvisionedJob],
        idle: Sequence[ProvisionedJob],
        wanted: int,
    ) -> list[ProvisionedJob]:
        """Return those of the idle jobs that are not needed, those that wait first."""
        if self.site.provision == "one_job":
            return [job for job in idle if job.num_nodes < wanted or not wanted]
        num_spare = max(0, len(jobs) - wanted)
        return sorted(idle, key=lambda job: not job.is_pending)[:num_spare]

"""The looks at a batch system's queue, and the node losses that wait for one.

Dask notices a lost node at once; the batch system knows the reason a moment later.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from scalelab.cluster.batch.queue import EndCause
from scalelab.cluster.watch import NodeLeft
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.scheduling.gangs import LOST, PartEnded, Verdict

FIRST_LOOK_S = 0.5
"""Seconds from a change to the next look at the queue."""


class QueueLooks:
    """The times at which the batch system is asked about all jobs."""

    def __init__(self, look: Callable[[], None], longest_s: float) -> None:
        self._look = look
        self._longest_s = longest_s
        # Of the next look and of the latest, on the monotonic clock.
        self.next_s = self.started_s = 0.0
        self._every_s = FIRST_LOOK_S
        self._is_looking = False

    def hurry(self) -> None:
        """Look soon, and then less and less often, because a job has changed."""
        self._every_s = FIRST_LOOK_S
        self.next_s = min(self.next_s, time.monotonic() + FIRST_LOOK_S)

    def begin(self, now_s: float) -> None:
        """Look at the queue if that is due and the last look has been answered."""
        if not self._is_looking and now_s >= self.next_s:
            self._is_looking = True
            self.started_s = now_s
            self._look()
            self.next_s = now_s + self._every_s
            self._every_s = min(self._every_s * 2, self._longest_s)

    def end(self) -> None:
        """Record that the latest look has been answered."""
        self._is_looking = False


HOLD_S = 20.0
"""How long the batch system may take to say why a node was lost."""

Loss = NodeLeft | PartEnded


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job ended that should not have: the cause, and a sentence without stop."""

    cause: EndCause
    words: str


class DelayedNodeLosses:
    """Delays node-loss events until the batch system has reported why the job ended."""

    def __init__(self, deliver: Callable[[Loss], None]) -> None:
        self._deliver = deliver
        self.held: list[tuple[float, Loss]] = []  # each with the moment since when
        self._released: set[int] = set()
        self.endings: dict[str, JobEnding] = {}  # by the job's name

    def hold(self, message: Loss) -> bool:
        """Hold back a message if it is a node loss that was not held back before."""
        if isinstance(message, PartEnded) and not isinstance(message.value, LOST):
            return False
        if id(message) in self._released:
            self._released.discard(id(message))
            return False
        self.held.append((time.monotonic(), message))
        return True

    def release(self, before_s: float) -> None:
        """Deliver the events that have been held back since before a moment."""
        due = [message for since_s, message in self.held if since_s < before_s]
        self.held = self.held[len(due) :]
        for message in due:
            self._released.add(id(message))
            self._deliver(message)

    def explain(self, verdict: Verdict) -> AttemptResult:
        """Return an attempt's result, with what the batch system said of its loss."""
        result = verdict.result
        jobs = [share.node.partition("/")[2] for share in verdict.spec.placement.shares]
        endings = [self.endings[job] for job in jobs if job in self.endings]
        if result.outcome is not Outcome.NODE_FAIL or not endings:
            return result
        ending = endings[0]
        is_lost = ending.cause is EndCause.OTHER
        outcome = Outcome.NODE_FAIL if is_lost else Outcome.PREEMPTED
        return replace(result, outcome=outcome, reason=f"{ending.words}.")

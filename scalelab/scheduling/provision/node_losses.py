"""Delayed node losses: held back until the batch system says why the job ended.

Dask notices a lost node at once; the batch system knows the reason a moment later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from scalelab.cluster.batch.queue import EndCause
from scalelab.cluster.watch import NodeLeft
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.scheduling.gangs import PartEnded, Verdict
from scalelab.scheduling.task_results import LOST

HOLD_S = 20.0
"""How long the batch system may take to say why a node was lost."""

Loss = NodeLeft | PartEnded


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job ended that should not have: the cause, and a sentence without stop."""

    cause: EndCause
    words: str


class DelayedNodeLosses:
    """Delays node-loss events until the batch system has reported why the job ended.

    Attributes
    ----------
    endings
        How jobs ended that should not have, by name.
    """

    def __init__(self, deliver: Callable[[Loss], None]) -> None:
        self._deliver = deliver
        self._held: list[tuple[float, Loss]] = []
        self._released: set[int] = set()
        self.endings: dict[str, JobEnding] = {}

    @property
    def are_held(self) -> bool:
        """Some node-loss events are held back at the moment."""
        return bool(self._held)

    def hold(self, message: Loss) -> bool:
        """Hold back a message if it is a node loss that was not held back before."""
        if isinstance(message, PartEnded) and not isinstance(message.value, LOST):
            return False
        if id(message) in self._released:
            self._released.discard(id(message))
            return False
        self._held.append((time.monotonic(), message))
        return True

    def release(self, before_s: float) -> None:
        """Deliver the events that have been held back since before a moment."""
        due = [message for since_s, message in self._held if since_s < before_s]
        self._held = self._held[len(due) :]
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

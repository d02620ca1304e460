"""Messages to the driver: from nodes, from attempts, and from the user who stops it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from scalelab.cluster.batch.queue import QueueEvent
from scalelab.cluster.watch import NodeEvent
from scalelab.scheduling.gangs import PartEnded


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end the sweep: after the running trials, or at once."""

    at_once: bool


Message = PartEnded | NodeEvent | QueueEvent | Stop


class Inbox:
    """Messages from any thread, taken out by the driver's."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message) -> None:
        """Add a message."""
        self._messages.put(message)

    def take(self, deadlines: Iterable[float | None]) -> Iterator[Message]:
        """Wait for one message, or the first deadline, and yield all there are.

        Parameters
        ----------
        deadlines
            On the monotonic clock; None: there is none.
        """
        known = [deadline_s for deadline_s in deadlines if deadline_s is not None]
        timeout_s = max(0.0, min(known) - time.monotonic()) if known else None
        with suppress(Empty):
            yield self._messages.get(timeout=timeout_s)
            while True:
                yield self._messages.get_nowait()

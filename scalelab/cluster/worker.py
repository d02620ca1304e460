"""The Dask worker that is a node."""

from __future__ import annotations

import time
from typing import Any

from distributed import Worker, batched
from distributed.batched import BatchedSend

_DUE = "_scalelab_due_s"


def keep_batches_steady() -> None:
    """Make this process count the time between batches on the monotonic clock.

    Dask sends messages in batches, a few milliseconds apart by the time of day
    (``distributed/batched.py``). A clock that is set back just after a batch, as when
    NTP corrects it, would hold the next one for as long as the step.
    """

    def until(sender: BatchedSend) -> float | None:
        """Return when the next batch is due, by the system clock as it is now."""
        due_s: float | None = getattr(sender, _DUE, None)
        if due_s is None:
            return None
        # In the past once it is due: Dask compares it with a time read just before.
        return time.time() + due_s - time.monotonic()

    def wait(sender: BatchedSend, deadline: float | None) -> None:
        due_s = deadline and time.monotonic() + deadline - time.time()
        setattr(sender, _DUE, due_s)

    batched.BatchedSend.next_deadline = property(until, wait)


class NodeWorker(Worker):
    """A Dask worker without an HTTP server.

    Dask's own listens on all addresses and asks nobody who they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_batches_steady()
        super().__init__(*args, **kwargs)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start no HTTP server."""

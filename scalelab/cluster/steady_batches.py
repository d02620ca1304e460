"""A fix for Dask, which sends no messages after the system clock was set back.

Dask sends messages in batches, a few milliseconds apart by the time of day
(``distributed/batched.py``). A clock that is set back just after a batch, as when NTP
corrects it, would hold the next one for as long as the step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.batched import BatchedSend

_DUE = "_scalelab_due_s"


def keep_batches_steady() -> None:
    """Make this process count the time between batches on the monotonic clock."""
    from distributed import batched

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

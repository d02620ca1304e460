"""A twin of the feed in virtual time: what a rank waits for its batches."""

from __future__ import annotations

from collections.abc import Sequence


def data_waits(
    read_s: Sequence[float],
    compute_s: float,
    *,
    prefetch: int = 0,
    loader_workers: int = 0,
) -> list[float]:
    """Return the seconds that a rank waits for each of its micro-batches.

    Examples
    --------
    Without reading ahead the rank waits for every batch, with it for the first alone:

    >>> data_waits([2, 2, 2], compute_s=3), data_waits([2, 2, 2], 3, prefetch=1)
    ([2, 2, 2], [2, 0, 0])
    """
    num_readers = max(1, loader_workers)
    depth = prefetch * num_readers
    now: float = 0
    waits: list[float] = []
    ready: list[float] = []
    taken: list[float] = []
    for number, seconds in enumerate(read_s):
        begins = now
        if depth:
            begins = taken[number - depth] if number >= depth else 0
            if number >= num_readers:
                begins = max(begins, ready[number - num_readers])
        ready.append(begins + seconds)
        waits.append(max(0, ready[-1] - now))
        taken.append(now + waits[-1])
        now = taken[-1] + compute_s
    return waits

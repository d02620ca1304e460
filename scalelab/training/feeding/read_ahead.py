"""Reads ahead by a thread of the rank, while it computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield items without end; a thread takes some before they are wanted."""
    free = threading.Semaphore(depth)
    ready: SimpleQueue[tuple[Item | None, BaseException | None]] = SimpleQueue()
    has_ended = threading.Event()

    def read() -> None:
        try:
            while free.acquire() and not has_ended.is_set():
                ready.put((next(items), None))
        except BaseException as error:
            ready.put((None, error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            free.release()
            yield item  # type: ignore[misc]
    finally:
        has_ended.set()
        free.release()

"""The stream of a process: an append-only file of small records.

It is opened by the first flush after an optimizer has stepped, and ends where the
process does: the last record may be torn. A record has 32 bytes, little-endian:

====  ====  ========================================================================
at    type  value
====  ====  ========================================================================
0     u8    index of the optimizer
1     u8    index of the loader
2     u8    flags: 1, gradients were disabled; 2, samples are not known; 4, a fact
3     u8    steps that a scaler of gradients has skipped since the last step
4     u32   steps of the optimizer so far, this one included; 0, it made none
8     u32   batches that were drawn from the loader since the last step
12    u32   samples in them
16    f32   seconds waited for them
20    f32   seconds from the last batches to the backward passes of the step
24    f64   the monotonic clock in seconds, when the step was over
====  ====  ========================================================================

Batches of several loaders between two steps have a record each, the last of which has
the step. A fact has its length in place of the steps, and is followed by so many bytes
of JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import time
from typing import Any, Iterable

_RECORD = struct.Struct("<BBBBIIIffd")
_FACT = 4
_NOTHING_DRAWN = (0, 0, 0, 0, 0.0)
# Steps that are written at once: a short program may end without a word.
_FIRST_STEPS = 32
_FLUSH_AFTER_S = 0.005
# Programs close the descriptors below, to have these numbers for files of their own.
_LEAST_DESCRIPTOR = 512


class Stream:
    """Writes the records of this process; after one that failed there is no other."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.begin()

    def begin(self) -> None:
        """Begin a stream: nothing was written by this process."""
        # That of the process it was forked from is left open: it may be another file's.
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._path: str | None = None
        self._records: list[bytes] = []
        self._flushed_s = 0.0
        self.is_begun = False  # nothing is written before
        self._is_broken = False

    def step(
        self,
        optimizer: int,
        number: int,
        at_s: float,
        draws: Iterable[tuple[Any, ...]],
        forward_s: float,
        skipped: int,
    ) -> None:
        """Add a step and what was drawn for it; write if it is time to."""
        self.is_begun = True
        drawn = list(draws) or [_NOTHING_DRAWN]
        for left, (loader, flags, *amounts) in enumerate(drawn, start=1 - len(drawn)):
            made, forward = (0, 0.0) if left else (number, forward_s)
            head = (optimizer, loader, flags, min(skipped, 255), made)
            self._records.append(_RECORD.pack(*head, *amounts, forward, at_s))
        if number <= _FIRST_STEPS or at_s - self._flushed_s > _FLUSH_AFTER_S:
            self.flush()

    def fact(self, **values: Any) -> None:
        """Add a fact, which JSON can hold."""
        text = json.dumps(values).encode()
        head = _RECORD.pack(0, 0, _FACT, 0, len(text), 0, 0, 0.0, 0.0, time.monotonic())
        self._records.append(head + text)

    def flush(self) -> None:
        """Write what was added."""
        if not self.is_begun or self._is_broken:
            return
        records, self._records = b"".join(self._records), []
        self._flushed_s = time.monotonic()
        try:
            self._is_broken = os.write(self._open(), records) < len(records)
        except OSError:
            self._is_broken = True

    def _open(self) -> int:
        # The program may have closed the descriptor, and opened another file with it.
        held = self._descriptor
        if held is not None and self._identity == _identity(held):
            return held

        if self._path is None:
            os.makedirs(self._folder, exist_ok=True)
            name = f"{os.getpid()}-{os.urandom(4).hex()}.probe"
            self._path = os.path.join(self._folder, name)
            self._flush_at_end()

        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        opened = os.open(self._path, flags, 0o644)
        self._descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
        os.close(opened)
        self._identity = _identity(self._descriptor)
        return self._descriptor

    def _flush_at_end(self) -> None:
        # Processes that multiprocessing has forked end without atexit.
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            util = sys.modules["multiprocessing.util"]
            util.Finalize(None, self.flush, exitpriority=1)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:  # it is closed
        return None
    return found.st_dev, found.st_ino

"""What ranks report: the progress board, where they show that they live; streams."""

from __future__ import annotations

import json
import math
import mmap
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from scalelab.inputs.plain_files import open_to_append
from scalelab.records.attempt import append_all

_STEP, _LAST, _STEP_AT, _READY, _NUM_INTERVALS, _INTERVALS = range(6)
_RING = 32
_SLOTS = _INTERVALS + _RING
FLUSH_INTERVAL_S = 1.0


class ProgressBoard:
    """Shared memory with one row per rank, written without a system call.

    Each value is one aligned 8-byte number with a single writer: a reader sees the old
    or the new one. All times are of this host's monotonic clock. A board that another
    process has made is opened by its descriptor.
    """

    def __init__(self, num_ranks: int, descriptor: int | None = None) -> None:
        size = num_ranks * _SLOTS * 8
        self.num_ranks = num_ranks
        self._made_s = time.monotonic()
        if descriptor is None:
            descriptor = os.memfd_create("scalelab-progress", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._values = memoryview(mmap.mmap(descriptor, size)).cast("d")

    def reporter(self, row: int) -> Reporter:
        """Return the object that the rank of this row calls with its step."""
        return Reporter(self._row(row))

    def step(self, row: int) -> int:
        """Return the last step the rank reported, 0 before the first."""
        return int(self._row(row)[_STEP])

    def last_sign_s(self, row: int) -> float:
        """Return when the rank last reported, or when the board was made."""
        return self._row(row)[_LAST] or self._made_s

    def ready_s(self, row: int) -> float | None:
        """Return when the rank last reported step 0; None where it never did."""
        return self._row(row)[_READY] or None

    def median_interval_s(self) -> float | None:
        """Return the median seconds between reports of a new step, over all ranks.

        Only the last 32 intervals of each rank count; the one that ends with the first
        step is left out. None before there is any.
        """
        intervals = [
            interval_s
            for values in map(self._row, range(self.num_ranks))
            for interval_s in values[_INTERVALS:][: int(values[_NUM_INTERVALS])]
        ]
        return statistics.median(intervals) if intervals else None

    def close(self) -> None:
        """Close the descriptor; the memory goes with the last reference to it."""
        os.close(self.descriptor)

    def _row(self, row: int) -> memoryview[float]:
        return self._values[row * _SLOTS : (row + 1) * _SLOTS]


class Reporter:
    """Writes one rank's row of the board, in about a microsecond per call."""

    def __init__(self, row: memoryview[float]) -> None:
        self._row = row

    def __call__(self, step: int) -> None:
        """Report that the rank lives and has finished ``step`` steps."""
        row, now = self._row, time.monotonic()
        previous = row[_STEP]
        if step == 0:
            row[_READY] = now
        elif step != previous:
            if previous > 0:
                count = int(row[_NUM_INTERVALS])
                row[_INTERVALS + count % _RING] = now - row[_STEP_AT]
                row[_NUM_INTERVALS] = count + 1
            row[_STEP_AT] = now
            row[_STEP] = step

        row[_LAST] = now


class StreamWriter:
    """Appends JSON lines to a file, at most about one write per second.

    Without a path, as on all ranks but rank 0, everything is discarded. Whole lines go
    to the file in one ``write`` on an unbuffered descriptor, so a rank killed at any
    moment leaves at most one torn line, the last. Where a disk that is nearly full
    takes a part of them, that part is taken back and the error raised.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = os.fdopen(open_to_append(path), "ab", buffering=0)
        self._lines: list[str] = []
        self._written_at = time.monotonic()

    def append(self, row: Mapping[str, Any]) -> None:
        """Record one row; values that are missing or not finite are left out."""
        if self._file is None:
            return
        known = {
            name: value
            for name, value in row.items()
            if value is not None
            and not (isinstance(value, float) and not math.isfinite(value))
        }

        self._lines.append(json.dumps(known, separators=(",", ":")) + "\n")
        if time.monotonic() - self._written_at >= FLUSH_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write the rows recorded so far."""
        if self._file is not None and self._lines:
            append_all(self._file.fileno(), "".join(self._lines).encode())
            self._lines.clear()
        self._written_at = time.monotonic()

    def close(self) -> None:
        """Write the rest and close the file."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()

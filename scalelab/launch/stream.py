"""The stream of an attempt: an append-only file of steps and evaluations."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.records.attempt_io import append_all

FLUSH_INTERVAL_S = 1.0


class StreamWriter:
    """Appends JSON lines to a file, at most about one write per second.

    Parameters
    ----------
    path
        The file; None discards everything (all ranks but rank 0).

    Notes
    -----
    Whole lines go to the file in one ``write`` on an unbuffered descriptor, so a rank
    killed at any moment leaves at most one torn line, the last. Where a disk that is
    nearly full takes a part of them, that part is taken back and the error raised.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("ab", buffering=0)
        self._lines: list[str] = []
        self._written_at = time.monotonic()

    def append(self, row: Mapping[str, Any]) -> None:
        """Record one row; values that are missing or not finite are left out."""
        if self._file is None:
            return
        known = {name: value for name, value in row.items() if _is_known(value)}
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


def _is_known(value: Any) -> bool:
    return value is not None and not (
        isinstance(value, float) and not math.isfinite(value)
    )

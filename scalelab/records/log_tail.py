"""The last lines of a log, read without reading the whole log."""

from __future__ import annotations

import math
from pathlib import Path

from scalelab.records.plain_files import harmless_text, opened

TAIL_BYTES = 1 << 14


def log_tail(log: Path, *, num_bytes: int = TAIL_BYTES, since: int = 0) -> str:
    """Return the end of a log; empty where there is none, or it cannot be read.

    Parameters
    ----------
    since
        Bytes at its beginning that do not count: what it held before.
    """
    try:
        with opened(log, most_bytes=math.inf) as file:
            file.seek(max(since, file.seek(0, 2) - num_bytes))
            return harmless_text(file.read(num_bytes).decode(errors="replace"))
    except OSError:
        return ""


def last_log_lines(log: Path, num_lines: int = 8, *, since: int = 0) -> str:
    """Return the last lines of a log; see :func:`log_tail`."""
    lines = log_tail(log, since=since).strip().splitlines()
    return "\n".join(lines[-num_lines:])

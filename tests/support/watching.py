"""Waits for processes and looks at them."""

from __future__ import annotations

import os
from pathlib import Path

from waiting import wait_until

from scalelab.records.attempt import AttemptSpec

ENTRY = "stand_in:act"
STAND_IN = Path(__file__).parent


def is_running(pid: int) -> bool:
    """A zombie, whose parent may be a container's careless init, is not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def read_pid(spec: AttemptSpec, name: str) -> int:
    file = Path(spec.directory) / f"{name}.pid"
    wait_until(file.exists, f"{file.name} is there")
    return int(file.read_text())


def core_ids(number: int) -> tuple[str, ...]:
    """Core numbers we may use, over again where there are too few."""
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(str(allowed[i % len(allowed)]) for i in range(number))

"""The kernel's count of processes that it has killed because memory ran out."""

from __future__ import annotations

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def oom_kill_count(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """Return how many processes the kernel has killed because memory ran out.

    This is the count of this process's control group, version 2 or 1, or that of the
    whole host where the group shows none, as in some containers; 0 where there is no
    count at all. Only the difference of two counts has a meaning.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            file = cgroups / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            file = cgroups / "memory" / path.lstrip("/") / "memory.oom_control"
        else:
            continue
        if (count := _count(file)) is not None:
            return count
    return _count(proc / "vmstat") or 0


def _count(file: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", _read(file), re.MULTILINE)
    return int(found[1]) if found else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

"""The jobs of one test in PBS, where others may have theirs; as a program, their end.

As a program it waits until its standard input is closed, as it is when the test ends or
is killed. Then it ends the test's processes, which would submit further jobs, and
deletes what jobs are left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "SCALELAB_PBS_TEST"
"""Variable that all processes of a test have, whatever home their jobs get."""
ENDED_WITHIN_S = 30


def own_jobs(home: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what PBS says of the jobs whose output goes below a folder, by id."""
    # Asked for all of them, the JSON holds all of them.
    asked = ["qstat", "-f", "-F", "json"]
    done = subprocess.run(asked, capture_output=True, text=True, env=env)
    jobs = json.loads(done.stdout or "{}").get("Jobs", {})
    return {
        job_id: job
        for job_id, job in jobs.items()
        if job["Output_Path"].partition(":")[2].startswith(f"{home}/")
    }


def end_marked(home: str) -> None:
    """End the processes of this machine that have a test's mark."""
    mark = f"{MARK}={home}".encode()
    deadline_s = time.monotonic() + ENDED_WITHIN_S
    while time.monotonic() < deadline_s:
        marked = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if mark in _variables(path)
        ]
        if not marked:
            return
        for pid in marked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _variables(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    sys.stdin.read()
    end_marked(sys.argv[1])
    if left := list(own_jobs(sys.argv[1])):
        subprocess.run(["qdel", *left])

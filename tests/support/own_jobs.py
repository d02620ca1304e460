"""The jobs of one test in PBS, where others may have theirs; as a program, their end.

As a program it waits until its standard input is closed, as it is when the test ends or
is killed, and deletes what jobs are left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


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


if __name__ == "__main__":
    sys.stdin.read()
    if left := list(own_jobs(sys.argv[1])):
        subprocess.run(["qdel", *left])

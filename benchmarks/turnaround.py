"""Turnaround: how long a GPU idles between two trials on a node that is up.

On the tests' real SLURM, as root. Trials are the same shell program, which writes down
when it starts and ends; idle is from the end of one to the start of the next. The peer
is one `sbatch` per trial: once squeue, asked every 20 ms, shows that a job has ended,
the next is submitted, as a planner does that waits for an answer before it asks anew.
Printed besides, without a line: all jobs submitted at once, the most that one can make
of `sbatch`. This SLURM schedules without the delays that are usual; it flatters both.
``--busy 3`` runs as many processes per core beside it that compute without end, and
``--nice 19`` lets these give way. Line: at least 20 times less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from slurm_sweeps import Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

POLL_S = 0.02
PROGRAM = """#!/bin/sh
started=$(date +%s.%N)
trap 'echo "$started $(date +%s.%N)" >> "$1"' EXIT
trap exit TERM
for step in 1 2 3; do
    echo '{"step": '$step', "samples": '$((step * 32))'}' >> "$SCALELAB_METRICS"
    sleep 0.05
done
"""
JOB = ["sbatch", "--parsable", "--gres=gpu:2", "--output=/dev/null"]
JOB += ["--export=ALL,SCALELAB_METRICS=/dev/null", "--nodelist=n1"]


def idle_s(stamps: Path) -> list[float]:
    """Return the seconds from each program's end to the next one's start."""
    lines = stamps.read_text().splitlines()
    times = sorted(tuple(map(float, line.split())) for line in lines)
    return [start - end for (_, end), (start, _) in pairwise(times)]


def ours(slurm: ThrowawaySlurm, number: int) -> list[float]:
    """Sweep so many repeats on one node of two devices."""
    stamps = slurm.home / "ours.txt"
    experiment = {
        "command": f"sh stamp.sh {stamps}",
        "launcher": "none",
        "metrics": {"jsonl": "$SCALELAB_METRICS"},
        "measure": {
            "kind": "throughput",
            "warmup_steps": 1,
            "steps": 2,
            "repeats": number,
            "canary_every": 0,
        },
        "local_batch_size": [16],
        "gpus": [2],
    }
    swept = Swept(slurm, "turnaround", experiment, nodes=1)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    return idle_s(stamps)


def one_by_one(slurm: ThrowawaySlurm, number: int) -> list[float]:
    """Submit a job once the one before is seen to have ended."""
    stamps = slurm.home / "peer.txt"
    for _ in range(number):
        job = slurm.run([*JOB, "stamp.sh", str(stamps)]).strip()
        while job in slurm.jobs():
            time.sleep(POLL_S)
    return idle_s(stamps)


def all_at_once(slurm: ThrowawaySlurm, number: int) -> list[float]:
    """Leave the order to SLURM."""
    stamps = slurm.home / "queued.txt"
    for _ in range(number):
        slurm.run([*JOB, "stamp.sh", str(stamps)])
    wait_until(lambda: not slurm.jobs(), "all jobs have ended", 600)
    return idle_s(stamps)


@contextmanager
def busy(number: int, nice: int) -> Iterator[None]:
    """Let so many processes compute, so much nicer than others."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def show(name: str, seconds: list[float]) -> None:
    print(
        f"{name}: GPU idle {statistics.median(seconds) * 1e3:.0f} ms "
        f"[{min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}, n={len(seconds)}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=21)
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES_PER_CORE")
    parser.add_argument("--nice", type=int, default=0)
    asked = parser.parse_args()
    number, num_busy = asked.trials, asked.busy * len(os.sched_getaffinity(0))
    with ThrowawaySlurm() as slurm, busy(num_busy, asked.nice):
        program = slurm.home / "stamp.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        peer_s = one_by_one(slurm, number)
        ours_s = ours(slurm, number)
        queued_s = all_at_once(slurm, number)
    show("trials of a sweep", ours_s)
    show("one sbatch after the other", peer_s)
    show("all submitted at once", queued_s)
    ours_median_s = statistics.median(ours_s)
    ratio = statistics.median(peer_s) / ours_median_s
    low, high = min(peer_s) / max(ours_s), max(peer_s) / min(ours_s)
    print(
        f"one sbatch after the other over ours: {ratio:.1f} [{low:.1f} to {high:.1f}], "
        f"line >= 20: {'met' if ratio >= 20 else 'NOT met'}; all submitted at once "
        f"over ours: {statistics.median(queued_s) / ours_median_s:.1f}"
    )


if __name__ == "__main__":
    main()

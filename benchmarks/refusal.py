"""Refusal: how long until an impossible request is reported.

On the tests' real SLURM, as root. A request for an hour in a partition that allows ten
minutes: SLURM takes the job, and it waits for ever. The peer is plain dask-jobqueue:
the same partition and walltime, `scale(1)`, and a wait for the worker that the
benchmark ends; without that end it waits for ever. Line: ours says so in bounded time,
and in SLURM's own words.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from slurm_sweeps import EMULATED, Swept
from throwaway_slurm import ThrowawaySlurm

WORDS = r"job \d+ can never run: PartitionTimeLimit"
PEER = """
import sys
from dask_jobqueue import SLURMCluster
from distributed import Client

if __name__ == "__main__":
    with SLURMCluster(
        queue="short", walltime="01:00:00", cores=1, memory="1GB", processes=1,
        interface="bridge", log_directory="peer",
    ) as cluster, Client(cluster) as client:
        cluster.scale(1)
        try:
            client.wait_for_workers(1, timeout=float(sys.argv[1]))
        except TimeoutError as error:
            print("no worker:", error)
"""


def ours_s(slurm: ThrowawaySlurm, repeat: int) -> float:
    """Return the seconds that a whole sweep takes to say it."""
    site = {"partition": "short", "walltime": "1h"}
    swept = Swept(slurm, f"refusal-{repeat}", {**EMULATED, "gpus": [1]}, **site)
    started_s = time.perf_counter()
    code, said = swept.run()
    seconds = time.perf_counter() - started_s
    assert code == 3, said
    assert re.search(WORDS, said), said
    return seconds


def peer(slurm: ThrowawaySlurm, bound_s: float) -> tuple[float, str]:
    """Return the seconds that it waited, and all it said."""
    (slurm.home / "peer.py").write_text(PEER)
    started_s = time.perf_counter()
    said = slurm.run(
        ["sh", "-c", f"python peer.py {bound_s} 2>&1"], timeout=bound_s + 60
    )
    return time.perf_counter() - started_s, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bound", type=float, default=120.0, metavar="SECONDS")
    options = parser.parse_args()
    with ThrowawaySlurm() as slurm:
        seconds = [ours_s(slurm, repeat) for repeat in range(options.repeats)]
        waited_s, said = peer(slurm, options.bound)
    named = "PartitionTimeLimit" in said
    print(
        f"an impossible request: reported after {statistics.median(seconds):.1f} s "
        f"[{min(seconds):.1f} to {max(seconds):.1f}, n={len(seconds)}]; plain "
        f"dask-jobqueue had {'' if named else 'not '}said why when it was ended after "
        f"{waited_s:.0f} s. Its words: {said.strip().splitlines()[-1]}"
    )
    print(f"at least {waited_s / max(seconds):.0f} times sooner")


if __name__ == "__main__":
    main()

"""The least a fork server can do: fork two ranks that meet and part, on request.

A line on standard input names a file for the ranks to meet at; the answer is a line
with the seconds from the first fork to the last exit.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

RANKS = 2


def run_rank(rank: int, store: str) -> None:
    """Meet, exchange, part."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        started = time.perf_counter()
        pids = []
        for rank in range(RANKS):
            if (pid := os.fork()) == 0:
                run_rank(rank, line.strip())
                os._exit(0)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        assert codes == [0] * RANKS, codes
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()

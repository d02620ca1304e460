"""Time of an all-reduce over message size and ranks, and the link that explains it.

A ring sends 2 (n - 1) messages one after the other, of bytes / n each (Patarasuk and
Yuan 2009, section 3), so an all-reduce takes 2 (n - 1) (latency + bytes / (n
bandwidth)). Both are fitted to the medians of all sizes and numbers of ranks, by
relative errors; how far each is off is printed beside it. The last line can be given to
a site where the ranks were on different nodes: start it there by torchrun, a rank per
node. Without torchrun it starts --ranks processes here, whose link is the memory of
this machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from scipy.optimize import nnls

from scalelab.inputs.links import Link

WARM_UP = 3
SMALLEST, LARGEST = 4 * 2**10, 64 * 2**20  # bytes

Sample = tuple[int, int, float]
"""Ranks, bytes, and seconds of one all-reduce."""


def sizes() -> Iterator[int]:
    size = SMALLEST
    while size <= LARGEST:
        yield size
        size *= 4


def measure(device: torch.device, repeats: int) -> list[Sample]:
    """Return the median times on 2, 4, ... ranks, and on all of them."""
    world = dist.get_world_size()
    counts = sorted({2**power for power in range(1, world.bit_length())} | {world})
    found = []
    for count in counts:
        group = dist.new_group(list(range(count)))
        for size in sizes():
            seconds = _median(group, size, device, repeats)
            if dist.get_rank() < count:
                found.append((count, size, seconds))
        dist.barrier()
    return found


def _median(
    group: dist.ProcessGroup, size: int, device: torch.device, repeats: int
) -> float:
    if dist.get_rank(group) < 0:
        return 0.0
    values = torch.ones(size // 4, device=device)
    times = []
    for number in range(WARM_UP + repeats):
        values.fill_(1.0)
        dist.barrier(group)
        started = time.perf_counter()
        dist.all_reduce(values, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= WARM_UP:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def fitted(samples: list[Sample]) -> Link:
    """Return the link whose ring explains the times, by least relative squares."""
    counts, bytes_, seconds = (
        np.array(column, float) for column in zip(*samples, strict=True)
    )
    messages = 2 * (counts - 1)
    terms = np.column_stack([messages, messages / counts * bytes_])
    (latency_s, s_per_byte), _ = nnls(terms / seconds[:, None], np.ones(len(seconds)))
    return Link(bandwidth_bytes_per_s=1 / s_per_byte, latency_s=float(latency_s))


def predicted(link: Link, count: int, size: int) -> float:
    latency_s = link.latency_s or 0.0
    return 2 * (count - 1) * (latency_s + size / count / link.bandwidth_bytes_per_s)


def report(samples: list[Sample]) -> None:
    link = fitted(samples)
    print("ranks      bytes   measured      ring")
    for count, size, seconds in samples:
        ring = predicted(link, count, size)
        print(
            f"{count:5} {size:10,} {seconds * 1e3:7.3f} ms {ring * 1e3:6.3f} ms "
            f"{seconds / ring:5.2f}x"
        )
    bandwidth, latency = str(link).split()
    print(f"links: {{between_nodes: {{bandwidth: {bandwidth}, latency: {latency}}}}}")


def run_rank(rank: int, given: argparse.Namespace, folder: str) -> None:
    device = torch.device(given.device)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        if given.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if given.device == "cuda" else "gloo")
    else:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet",
            rank=rank,
            world_size=given.ranks,
        )
    samples = measure(device, given.repeats)
    if dist.get_rank() == 0:
        report(samples)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="without torchrun")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), given, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, (given, folder), nprocs=given.ranks)


if __name__ == "__main__":
    main()

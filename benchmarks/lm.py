"""Tokens per second of ``transformer_lm`` under ScaleLab over those of a plain loop.

*Ours* is the training engine as throughput trials run it, with its step clock. The
*peer* is what a script of thirty lines does with the same model, optimiser, data and
sample order: forward, backward, step. Both take a few steps turn by turn in the same
ranks, so that both share the machine's noise. Line: at least 0.98 of the peer's rate.
The text is the source files of Python's standard library, or --data.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
import torch.nn.functional as F
from comparison import interleave, median_interval
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.training.context import RankContext, process_group
from scalelab.training.engines.ddp import DdpEngine
from scalelab.training.order import SampleOrder
from scalelab.training.probes.meter import step_clock
from scalelab.training.seeds import MODEL_STREAM, seed_everything
from scalelab.training.workloads.transformer_lm import TransformerLm

LIMIT = 0.98
BLOCK = 4
"""Steps in a row of each, between the readings of the clock."""

Step = Callable[[], None]


def our_step(workload: TransformerLm, context: RankContext, local_batch: int) -> Step:
    """Return a function that takes one step of the training engine."""
    trial = Trial(
        kind=TrialKind.THROUGHPUT,
        workload="transformer_lm",
        allocation=Allocation(devices_per_node=(context.world_size,)),
        local_batch_size=local_batch,
    )
    clock = step_clock(context.device)
    engine = DdpEngine(workload, trial, context, clock)
    engine.begin(0, 1)
    counter = iter(range(10**9))

    def step() -> None:
        clock.start()
        engine.step(next(counter))

    return step


def plain_step(workload: TransformerLm, context: RankContext, local_batch: int) -> Step:
    """Return a function that takes one step as a short script would."""
    seed_everything(0, MODEL_STREAM)
    model: nn.Module = workload.build_model().to(context.device)
    if context.world_size > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = workload.build_optimizer(model, workload.default_learning_rate)
    data = workload.training_data().tensors[0].to(context.device)
    batch = local_batch * context.world_size
    order = SampleOrder(num_samples=len(data), global_batch_size=batch, seed=0)
    own = slice(context.rank * local_batch, (context.rank + 1) * local_batch)
    counter = iter(range(10**9))

    def step() -> None:
        chosen = torch.from_numpy(order.batch(next(counter))[own])
        tokens = data[chosen.to(context.device)].long()
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds_of_block(step: Step, device: torch.device) -> float:
    """Return how long a few steps take."""
    started = time.perf_counter()
    for _ in range(BLOCK):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def run_rank(rank: int, given: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # as a trial's ranks are
    is_cuda = given.device == "cuda"
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    identity = RankIdentity(
        rank=rank,
        local_rank=rank,
        world_size=given.ranks,
        local_world_size=given.ranks,
        node_rank=0,
        num_nodes=1,
    )
    workload = TransformerLm(
        layers=given.layers,
        width=given.width,
        heads=given.heads,
        sequence_length=given.sequence_length,
        data=given.data,
    )
    with process_group(identity, f"file://{folder}/meet", device, "bench"):
        context = RankContext(
            identity=identity,
            device=device,
            directory=Path(folder),
            stream=StreamWriter(None),
            progress=lambda step: None,
        )
        ours, peer = (
            partial(
                seconds_of_block, make(workload, context, given.local_batch), device
            )
            for make in (our_step, plain_step)
        )
        interleave(ours, peer, 2)  # warm-up
        found = interleave(ours, peer, given.repeats)
        if context.is_first:
            _print(found, workload, given)


def _print(found: Any, workload: TransformerLm, given: argparse.Namespace) -> None:
    tokens = BLOCK * given.local_batch * given.ranks * given.sequence_length
    rates = [
        tokens / sorted(times)[len(times) // 2]
        for times in (found.ours_s, found.peer_s)
    ]
    print(
        f"{workload.shape.num_parameters / 1e6:.2f} million parameters, "
        f"{given.ranks} x {given.local_batch} sequences of {given.sequence_length}: "
        f"ours {rates[0]:,.0f} tokens/s, peer {rates[1]:,.0f} tokens/s"
    )
    name = f"{BLOCK} steps; ratio of tokens/s, ours over a plain loop"
    print(found.line(name, limit=LIMIT, inverse=True))
    lo, hi = median_interval([1 / ratio for ratio in found.ratios])
    print(f"95% interval of the median: {lo:.3f} to {hi:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--local-batch", type=int, default=8)
    parser.add_argument("--data", help="text instead of Python's own sources")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, (given, folder), nprocs=given.ranks)


if __name__ == "__main__":
    main()

"""What measuring costs: two ranks step with and without meter, turn by turn.

*With* is the training engine as trials run it: step clock, and the callback that tells
when only the exchange is left. *Without* is the same engine with neither. Steps are
taken in pairs of random order until the 95% interval of the median ratio, by bootstrap
over blocks of neighbouring pairs, has a half-width of 0.5%, or the steps run out. The
ratio is taken pair by pair because steps of ranks that share a core with their
communication thread take one of two times, and neighbours mostly the same one. Line:
the upper end is at most 1.02. Timed in the same way, without a line: the engine without
meter against a bare loop over the same model, feed and optimiser, and the gradient
noise scale against none.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.training import feed
from scalelab.training.context import RankContext, process_group
from scalelab.training.engines.ddp import BUFFER_ARGUMENT, DdpEngine, DdpModel
from scalelab.training.engines.spread import Observers
from scalelab.training.order import SampleOrder, Share
from scalelab.training.probes.meter import Phase, Seconds, step_clock
from scalelab.training.workloads.digits_mlp import DigitsMlp

BLOCK, NEIGHBOURS, MIN_PAIRS = 250, 50, 1000
HALF_WIDTH, LIMIT = 0.005, 1.02
LOCAL_BATCH = 64


def trial(kind: TrialKind, num_ranks: int) -> Trial:
    """Return a trial of one kind on this many ranks."""
    return Trial(
        kind=kind,
        workload="digits_mlp",
        allocation=Allocation(devices_per_node=(num_ranks,)),
        local_batch_size=LOCAL_BATCH,
        measurement=Measurement(max_samples=10**9),
    )


class NoClock:
    """A step clock that does nothing."""

    def start(self) -> None:
        pass

    def mark(self, phase: Phase) -> None:
        pass

    def end_step(self) -> None:
        pass

    def drain(self) -> Seconds:
        return np.empty((0, len(Phase)))


class UnobservedModel(DdpModel):
    """Data parallelism that tells nobody about its gradients."""

    def watch(self, loss: torch.Tensor) -> None:
        pass


class UnobservedEngine(DdpEngine):
    """Trains such a model."""

    def spread(self, model: nn.Module, observers: Observers) -> UnobservedModel:
        return UnobservedModel(model, self.context.device, observers)


class Compared(NamedTuple):
    """The ratio of two steppers' times with its 95% interval, and the second's."""

    ratio: float
    low: float
    high: float
    num_pairs: int
    second_ms: float


class Stepper(NamedTuple):
    """What is timed, and what a trial does between blocks of steps, untimed."""

    step: Callable[[], None]
    rest: Callable[[], object]


def engine_step(
    kind: TrialKind,
    context: RankContext,
    hidden_size: int,
    *,
    has_meter: bool = True,
) -> Stepper:
    """Return a stepper of the training engine."""
    clock = step_clock(context.device) if has_meter else NoClock()
    new_engine = DdpEngine if has_meter else UnobservedEngine
    engine = new_engine(
        DigitsMlp(hidden_sizes=[hidden_size, hidden_size]),
        trial(kind, context.world_size),
        context,
        clock,
    )
    engine.begin(0, 1)
    counter = iter(range(10**9))

    def step() -> None:
        clock.start()
        engine.step(next(counter))

    return Stepper(step, clock.drain)


def bare_step(context: RankContext, hidden_size: int) -> Stepper:
    """Return a stepper that does what a short script would."""
    workload = DigitsMlp(hidden_sizes=[hidden_size, hidden_size])
    model: nn.Module = workload.build_model().to(context.device)
    if context.world_size > 1:
        model = DistributedDataParallel(
            model, gradient_as_bucket_view=True, **{BUFFER_ARGUMENT: False}
        )
    optimizer = workload.build_optimizer(model, 0.05)
    data = workload.training_data()
    batches = feed.training_batches(
        data,
        SampleOrder(
            num_samples=feed.num_samples_of(data),
            global_batch_size=LOCAL_BATCH * context.world_size,
            seed=0,
        ),
        Share(
            rank=context.rank,
            data_parallel_size=context.world_size,
            local_batch_size=LOCAL_BATCH,
            gradient_accumulation_steps=1,
        ),
        first_step=0,
        device=context.device,
        augment=workload.augment,
        num_random=workload.num_random,
    )

    def step() -> None:
        workload.loss(model, next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Stepper(step, lambda: None)


def compare(
    first: Stepper, second: Stepper, context: RankContext, max_pairs: int
) -> Compared | None:
    """Return how long the first's steps took against the second's, on rank 0."""
    chance = random.Random(0)
    seconds: tuple[list[float], list[float]] = ([], [])
    found = (1.0, 0.0, 9.0)
    while len(seconds[0]) < max_pairs:
        for _ in range(BLOCK):
            for index in chance.sample((0, 1), 2):
                started = time.perf_counter()
                (first, second)[index].step()
                if context.device.type == "cuda":
                    torch.cuda.synchronize()
                seconds[index].append(time.perf_counter() - started)
        first.rest()
        second.rest()
        found = _median(np.divide(*seconds))
        is_done = len(seconds[0]) >= MIN_PAIRS and found[2] - found[1] <= 2 * HALF_WIDTH
        decision = torch.tensor(float(is_done), device=context.device)
        dist.broadcast(decision, 0)
        if decision.item():
            break
    second_ms = 1e3 * float(np.median(seconds[1]))
    return Compared(*found, len(seconds[0]), second_ms) if context.is_first else None


def _median(ratios: np.ndarray) -> tuple[float, float, float]:
    blocks = ratios.reshape(-1, NEIGHBOURS)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(blocks), (200, len(blocks)))
    draws = np.median(blocks[picks].reshape(len(picks), -1), axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def run_rank(
    rank: int,
    num_ranks: int,
    folder: str,
    device: str,
    max_pairs: int,
    hidden_size: int,
) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # as a trial's ranks are
    identity = RankIdentity(
        rank=rank,
        local_rank=rank,
        world_size=num_ranks,
        local_world_size=num_ranks,
        node_rank=0,
        num_nodes=1,
    )
    where = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    with process_group(identity, f"file://{folder}/meet", where, "bench"):
        context = RankContext(
            identity=identity,
            device=where,
            directory=Path(folder),
            stream=StreamWriter(None),
            progress=lambda step: None,
        )
        kind = TrialKind.THROUGHPUT
        ours = engine_step(kind, context, hidden_size)
        unmetered = engine_step(kind, context, hidden_size, has_meter=False)
        watched = engine_step(TrialKind.CONVERGENCE, context, hidden_size)
        for name, first, second, limit in (
            ("with over without meter", ours, unmetered, LIMIT),
            (
                "engine without meter over bare loop",
                unmetered,
                bare_step(context, hidden_size),
                None,
            ),
            ("with over without noise scale, every 10th step", watched, ours, None),
        ):
            if found := compare(first, second, context, max_pairs):
                _print(name, found, limit)
    if device == "cpu":  # a gloo group is left standing for processes that just end
        dist.destroy_process_group()


def _print(name: str, found: Compared, limit: float | None) -> None:
    line = (
        f"{name}: {found.ratio:.4f}, 95% interval {found.low:.4f} to {found.high:.4f}, "
        f"{found.num_pairs} pairs, of a step of {found.second_ms:.3f} ms"
    )
    if limit is not None:
        met = "met" if found.high <= limit else "NOT met"
        line += f"; line: upper end <= {limit}: {met}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--max-pairs", type=int, default=12_000)
    parser.add_argument("--hidden-size", type=int, default=512)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(
            run_rank,
            (
                given.ranks,
                folder,
                given.device,
                given.max_pairs,
                given.hidden_size,
            ),
            nprocs=given.ranks,
        )


if __name__ == "__main__":
    main()

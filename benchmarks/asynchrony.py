"""Workers that wait for nobody, against the arithmetic of their own cycles.

Passes sleep for declared times, so that four workers need no four cores; the last is
slower by a factor. In each repeat every worker takes some steps alone with the server,
which gives its cycle: a pass and an exchange. Then a trial runs with all of them, by
the training loop of real trials. If nobody waits for anybody, a step of the trial, as
many optimiser steps as there are workers, takes the workers over the sum of their
rates: ``workers / sum(1 / cycle)``. Line: the median ratio of the two is within 5% from
passes of 0.05 s on, and within 15% below. ``ddp`` and ``local_sgd``, in the same way:
their steps take as long as those of the slowest rank take without any exchange.

Steps are whole periods, after which the workers stand to each other as before, so that
the ends of a short trial do not count.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import multiprocessing.connection
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.strategies import ServerRule
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.training.context import RankContext, process_group
from scalelab.training.engines.ddp import DdpEngine
from scalelab.training.engines.local_sgd import LocalSgdEngine
from scalelab.training.engines.parameter_server import ParameterServerEngine
from scalelab.training.loop import FreeLoop, Loop
from scalelab.training.probes.device_monitor import DeviceMonitor
from scalelab.training.probes.meter import HostClock
from scalelab.training.servers.link import linked_to_servers
from scalelab.training.servers.process import Server
from scalelab.training.servers.wire import Wire
from scalelab.training.workloads.base import Workload

SYNCHRONOUS = {"ddp": DdpEngine, "local_sgd": LocalSgdEngine}
AVERAGING_PERIOD = 4
LIMIT, SHORT_LIMIT, SHORT_S = 0.05, 0.15, 0.05
CPU = torch.device("cpu")
_forkserver = multiprocessing.get_context("forkserver")


class Sleepy(Workload):
    """Learns next to nothing in passes of a declared time."""

    def __init__(self, pass_s: float) -> None:
        self.pass_s = pass_s

    def build_model(self) -> nn.Module:
        return nn.Linear(8, 2)

    def training_data(self) -> TensorDataset:
        return TensorDataset(torch.ones(64, 8), torch.zeros(64, dtype=torch.int64))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(self.pass_s)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Case:
    """What is compared: passes, the slow worker, workers, rule and periods."""

    pass_s: float
    factor: int
    num_workers: int
    rule: str
    periods: int

    @property
    def period(self) -> int:
        """Steps of the trial after which workers stand to each other as before."""
        if self.rule in SYNCHRONOUS:
            return AVERAGING_PERIOD
        steps_of_all = (self.num_workers - 1) * self.factor + 1
        return math.lcm(steps_of_all, self.num_workers) // self.num_workers

    @property
    def alone_steps(self) -> int:
        """Steps of the trial that each worker takes alone."""
        return max(2, min(20, round(2 / self.pass_s / self.num_workers)))

    @property
    def trial(self) -> Trial:
        """The trial of all workers together."""
        options: dict[str, Any] = {"slow_rank_factor": self.factor}
        if self.rule == "local_sgd":
            options |= {"averaging_period": AVERAGING_PERIOD}
        elif self.rule not in SYNCHRONOUS:
            options |= {"rule": self.rule, "communication_window": 1}
        return Trial(
            kind=TrialKind.THROUGHPUT,
            workload="sleepy",
            allocation=Allocation(devices_per_node=(self.num_workers,)),
            local_batch_size=4,
            parallelism=(self.rule if self.rule in SYNCHRONOUS else "parameter_server"),
            options=options,
            measurement=Measurement(
                warmup_steps=self.period,
                steps=self.period * self.periods,
                relative_precision=1e-9,
            ),
        )


def alone_with_the_server(case: Case, context: RankContext) -> list[float]:
    """Return the cycle of each worker, one after the other."""
    engine = ParameterServerEngine(
        Sleepy(case.pass_s), case.trial, context, HostClock()
    )
    cycle_s, done = 0.0, 0
    for worker in range(case.num_workers):
        engine.begin(done, case.alone_steps)
        if worker == context.rank:
            engine.take()  # the first step of a slow worker is not slow
            started = time.perf_counter()
            num_steps = 0
            while engine.take() is not None:
                num_steps += 1
            cycle_s = (time.perf_counter() - started) / num_steps
        context.sum([0])
        done += case.alone_steps
    return context.sum([cycle_s * (r == context.rank) for r in range(case.num_workers)])


def without_exchange(case: Case, context: RankContext) -> list[float]:
    """Return the cycle of each rank of a synchronous strategy, all at once."""
    trial, num_steps = case.trial, 2 * case.alone_steps
    never = replace(trial, options={**trial.options, "averaging_period": 10**6})
    engine = LocalSgdEngine(Sleepy(case.pass_s), never, context, HostClock())
    engine.step(0)
    started = time.perf_counter()
    for step in range(1, num_steps + 1):
        engine.step(step)
    cycle_s = (time.perf_counter() - started) / num_steps
    return context.sum([cycle_s * (r == context.rank) for r in range(case.num_workers)])


def together(case: Case, context: RankContext) -> float:
    """Return the step time of the trial."""
    clock, trial, workload = HostClock(), case.trial, Sleepy(case.pass_s)
    loop: Loop
    if engine := SYNCHRONOUS.get(case.rule):
        synchronous = engine(workload, trial, context, clock)
        loop = Loop(context, trial, synchronous, clock, DeviceMonitor(CPU))
    else:
        served = ParameterServerEngine(workload, trial, context, clock)
        loop = FreeLoop(context, trial, served, clock, DeviceMonitor(CPU))
    return float(loop.run().readings.sum(axis=1).mean())


def run_process(rank: int, case: Case, folder: str, repeats: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    identity = RankIdentity(
        rank=rank,
        local_rank=rank,
        world_size=case.num_workers,
        local_world_size=case.num_workers,
        node_rank=0,
        num_nodes=1,
    )
    meeting = f"file://{folder}/meet"
    if rank == case.num_workers:
        _serve(case, meeting)
        return
    found = []
    with (
        process_group(identity, meeting, CPU, "bench") as store,
        linked_to_servers(case.trial, store, rank) as servers,
    ):
        context = RankContext(
            identity=identity,
            device=CPU,
            directory=Path(folder),
            stream=StreamWriter(None),
            progress=lambda step: None,
            servers=servers,
        )
        for _ in range(repeats):
            if case.rule in SYNCHRONOUS:
                expected_s = max(without_exchange(case, context))
            else:
                cycles_s = alone_with_the_server(case, context)
                expected_s = case.num_workers / sum(1 / each for each in cycles_s)
            found.append((together(case, context), expected_s))
    dist.destroy_process_group()
    if rank == 0:
        pipe.send(found)


def _serve(case: Case, meeting: str) -> None:
    from scalelab.training.context import meeting_store

    store = meeting_store(meeting, case.num_workers, "bench")
    wire = Wire(store, case.num_workers, case.num_workers + 1)
    Server(wire, case.trial, lambda step: None).serve()


def measured(case: Case, repeats: int) -> list[tuple[float, float]]:
    """Return step time and what the arithmetic says, by repeat."""
    here, there = _forkserver.Pipe(duplex=False)
    num_servers = case.rule not in SYNCHRONOUS
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _forkserver.Process(
                target=run_process, args=(rank, case, folder, repeats, there)
            )
            for rank in range(case.num_workers + num_servers)
        ]
        for process in processes:
            process.start()
        there.close()
        left = {process.sentinel: process for process in processes}
        while left:
            for sentinel in multiprocessing.connection.wait(list(left)):
                if left.pop(sentinel).exitcode:  # type: ignore[call-overload]
                    for process in processes:
                        process.kill()
        found: list[tuple[float, float]] = here.recv()
    return found


def line(case: Case, found: Sequence[tuple[float, float]]) -> str:
    """Return what was measured beside the arithmetic, and whether it is near."""
    ratios = [ours_s / expected_s for ours_s, expected_s in found]
    ours_s, expected_s = (statistics.median(each) for each in zip(*found, strict=True))
    ratio = statistics.median(ratios)
    limit = SHORT_LIMIT if case.pass_s < SHORT_S else LIMIT
    met = "met" if abs(ratio - 1) <= limit else "NOT met"
    return (
        f"pass {case.pass_s * 1e3:g} ms, factor {case.factor}, {case.num_workers} "
        f"workers, {case.rule}: step {ours_s * 1e3:.1f} ms, by arithmetic "
        f"{expected_s * 1e3:.1f} ms, ratio {ratio:.3f} "
        f"[{min(ratios):.3f} to {max(ratios):.3f}, n={len(ratios)}], "
        f"line within {limit:.0%}: {met}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rules = (*get_args(ServerRule), *SYNCHRONOUS)
    number = {"type": int, "nargs": "+"}
    parser.add_argument("--passes", type=float, nargs="+", default=[0.01, 0.05, 0.3, 2])
    parser.add_argument("--factors", default=[1, 3, 5], **number)  # type: ignore[arg-type]
    parser.add_argument("--workers", default=[2, 4], **number)  # type: ignore[arg-type]
    parser.add_argument("--rules", nargs="+", choices=rules, default=rules)
    parser.add_argument("--periods", type=int, help="default: by the pass, 2 to 20")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, help="cases; default: by the pass")
    given = parser.parse_args()
    _forkserver.set_forkserver_preload(["scalelab.training.loop"])
    for pass_s in given.passes:
        periods = given.periods or max(2, min(20, round(0.6 / pass_s)))
        cases = [
            Case(pass_s, factor, workers, rule, periods)
            for factor, workers, rule in itertools.product(
                given.factors, given.workers, given.rules
            )
        ]
        # Sleeping workers need no core, short steps need one at once.
        at_once = given.at_once or max(1, min(24, round(pass_s / 0.08)))
        with ThreadPoolExecutor(at_once) as pool:
            all_found = pool.map(lambda case: measured(case, given.repeats), cases)
            for case, found in zip(cases, all_found, strict=True):
                print(line(case, found), flush=True)


if __name__ == "__main__":
    main()

"""Packing: how long the placement makes a sweep take, in a simulator of events.

The placer is the driver's own; nodes, trials and their durations are made up. A sweep
asks for 1 to 64 nodes of 8 devices in doublings, each as often as another, and three
repeats of each configuration; by default for 1,000 trials on 64 nodes. Durations are
log-normal, as those of jobs in the traces of GPU clusters roughly are: half of them
under 3 minutes, one in a hundred over half an hour. The placer is told durations that
are wrong by a quarter, or, as in a first sweep, nothing.

Rivals in the same simulator: the order of the source with nobody overtaking (fifo), and
the largest trial that fits at any time (largest first). Lines: with a fixed pool within
10% of the bound max(device-seconds / devices, longest trial); with nodes that come one
by one and fail, no longer than either rival beyond noise; 10,000 trials on 1,024 nodes
placed in less than 10 s of CPU.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from packing_rivals import Policy, fifo, largest_first
from scipy.stats import t as student_t

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.tracked import UNKNOWN_S
from scalelab.records.attempt import Placement
from scalelab.scheduling.placement import Placer
from scalelab.scheduling.trial_queue import Request

NUM_NODES, DEVICES = 64, 8
DEFAULT_TRIALS = 1_000
SIZES = (1, 2, 4, 8, 16, 32, 64)
MEDIAN_S, SPREAD, LONGEST_S = 180.0, 1.0, 7200.0
REPEATS, REPEAT_SPREAD, ERROR = 3, 0.05, 0.25
ARRIVAL_S, REPAIR_S = 20.0, 600.0
NUM_FAILURES = 8
"""Of nodes, on average, in the time that a sweep needs at least."""

Estimate = Callable[[random.Random, float], float]


@dataclass(frozen=True)
class Sweep:
    """Requests as the placer sees them, and how long each really takes."""

    requests: list[Request]
    seconds: list[float]

    @property
    def work_s(self) -> float:
        """Device-seconds of all trials."""
        pairs = zip(self.requests, self.seconds, strict=True)
        return sum(request.trial.world_size * each for request, each in pairs)

    def bound_s(self, num_nodes: int) -> float:
        """Return what no placement on so many nodes can beat."""
        return max(self.work_s / (num_nodes * DEVICES), *self.seconds)


@dataclass(frozen=True)
class Change:
    """A node that comes or goes; names are used once."""

    at_s: float
    name: str
    is_up: bool


class Ours(Placer):
    """What a sweep places its trials by, where nodes are alike."""

    def enqueue(self, request: Request) -> None:
        self.queue.add(request)


POLICIES: dict[str, Callable[[], Policy]] = {
    "ours": Ours,
    "fifo": fifo,
    "largest first": largest_first,
}


class Simulation:
    """A sweep under a policy, on nodes that come and go.

    Attributes
    ----------
    makespan_s
        When the last trial ended.
    cpu_s
        What the policy took to decide.
    """

    def __init__(self, policy: Policy, sweep: Sweep, changes: Sequence[Change]) -> None:
        self._policy, self._sweep = policy, sweep
        self._events: list[tuple[float, int, Change | int]] = []
        self._ties = itertools.count()
        self._running: dict[int, tuple[int, Placement]] = {}
        self._by_node: dict[str, set[int]] = {}
        self._num_left = len(sweep.requests)
        self.cpu_s = self.makespan_s = 0.0
        for change in changes:
            self._push(change.at_s, change)
        with _Counted(self):
            for request in sweep.requests:
                policy.enqueue(request)
        self._run()

    def _push(self, at_s: float, event: Change | int) -> None:
        heapq.heappush(self._events, (at_s, next(self._ties), event))

    def _run(self) -> None:
        now_s = 0.0
        while self._num_left:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                self._happen(heapq.heappop(self._events)[2])
            with _Counted(self):
                placed = self._policy.place(now_s)
            for request, placement in placed:
                self._start(request, placement, now_s)
        self.makespan_s = now_s

    def _start(self, request: Request, placement: Placement, now_s: float) -> None:
        launch = next(self._ties)
        self._running[launch] = (request.number, placement)
        for share in placement.shares:
            self._by_node[share.node].add(launch)
        self._push(now_s + self._sweep.seconds[request.number], launch)

    def _happen(self, event: Change | int) -> None:
        if isinstance(event, int):
            if event in self._running:
                self._end(event)
                self._num_left -= 1
        elif event.is_up:
            self._by_node[event.name] = set()
            with _Counted(self):
                self._policy.add_node(_node(event.name))
        else:
            with _Counted(self):
                self._policy.remove_node(event.name)
            for launch in sorted(self._by_node[event.name]):
                number = self._end(launch)
                with _Counted(self):
                    self._policy.enqueue(self._sweep.requests[number])

    def _end(self, launch: int) -> int:
        number, placement = self._running.pop(launch)
        for share in placement.shares:
            self._by_node[share.node].discard(launch)
        with _Counted(self):
            self._policy.release(number)
        return number


class _Counted:
    """Adds the CPU time of a block to a simulation's."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def __enter__(self) -> None:
        self._started_s = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._simulation.cpu_s += time.process_time() - self._started_s


def _node(name: str) -> Node:
    return Node(
        name=name,
        address=name,
        host=name,
        device_ids=tuple(map(str, range(DEVICES))),
        device_name="",
        num_cores=DEVICES,
        memory_bytes=0,
    )


def make_sweep(seed: int, number: int, estimate: Estimate) -> Sweep:
    """Draw a sweep: all repeats of all configurations, repeat by repeat."""
    draw, misjudge = random.Random(seed), random.Random(f"{seed} estimates")
    configurations = []
    for index in range(math.ceil(number / REPEATS)):
        middle_s = min(LONGEST_S, draw.lognormvariate(math.log(MEDIAN_S), SPREAD))
        told_s = estimate(misjudge, middle_s)
        configurations.append((SIZES[index % len(SIZES)], middle_s, told_s))
    draw.shuffle(configurations)
    requests, seconds = [], []
    for repeat, (size, middle_s, told_s) in itertools.product(
        range(REPEATS), configurations
    ):
        if len(requests) < number:
            trial = Trial(
                kind=TrialKind.THROUGHPUT,
                workload="emulated",
                allocation=Allocation(devices_per_node=(DEVICES,) * size),
                local_batch_size=1,
                repeat=repeat,
            )
            requests.append(Request(len(requests), trial, told_s))
            seconds.append(middle_s * draw.lognormvariate(0, REPEAT_SPREAD))
    return Sweep(requests, seconds)


def roughly_known(draw: random.Random, seconds: float) -> float:
    """Estimate what is wrong by a quarter, more or less."""
    return seconds * draw.lognormvariate(0, ERROR)


def unknown(draw: random.Random, seconds: float) -> float:
    """Estimate what the driver does before the first trial has ended."""
    return UNKNOWN_S


def fixed(num_nodes: int) -> list[Change]:
    """All nodes from the beginning."""
    return [Change(0.0, f"n{index}", True) for index in range(num_nodes)]


def late_and_failing(
    seed: int, num_nodes: int, mean_between_s: float, until_s: float
) -> list[Change]:
    """Nodes that come one by one, fail at random, and are replaced after a while."""

    def life(index: int) -> Iterator[Change]:
        draw = random.Random(f"{seed} {index}")
        at_s = ARRIVAL_S * (index + draw.random())
        for incarnation in itertools.count():
            name = f"n{index}.{incarnation}"
            yield Change(at_s, name, True)
            at_s += draw.expovariate(1 / mean_between_s)
            if at_s > until_s:
                return
            yield Change(at_s, name, False)
            at_s += draw.expovariate(1 / REPAIR_S)

    return [change for index in range(num_nodes) for change in life(index)]


def spread(values: Sequence[float]) -> str:
    return (
        f"{statistics.median(values):.3f} "
        f"[{min(values):.3f} to {max(values):.3f}, n={len(values)}]"
    )


def makespans(sweep: Sweep, changes: Sequence[Change]) -> dict[str, float]:
    return {
        name: Simulation(make(), sweep, changes).makespan_s
        for name, make in POLICIES.items()
    }


def over_bound(
    number: int,
    num_nodes: int,
    seeds: Sequence[int],
    estimate: Estimate,
) -> dict[str, list[float]]:
    """Return makespans over the bound on a fixed pool, seed by seed."""
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in seeds:
        sweep = make_sweep(seed, number, estimate)
        for name, seconds in makespans(sweep, fixed(num_nodes)).items():
            ratios[name].append(seconds / sweep.bound_s(num_nodes))
    return ratios


def over_rivals(
    number: int, num_nodes: int, seeds: Sequence[int]
) -> dict[str, list[float]]:
    """Return our makespans over each rival's where nodes come late and fail."""
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES if name != "ours"}
    for seed in seeds:
        sweep = make_sweep(seed, number, roughly_known)
        bound_s = sweep.bound_s(num_nodes)
        changes = late_and_failing(
            seed,
            num_nodes,
            bound_s * num_nodes / NUM_FAILURES,
            100 * bound_s,
        )
        found = makespans(sweep, changes)
        for rival in ratios:
            ratios[rival].append(found["ours"] / found[rival])
    return ratios


def geometric(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean with its 95% interval over the seeds."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    quantile = float(student_t.ppf(0.975, len(logs) - 1))
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def report_fixed(number: int, seeds: Sequence[int], estimate: Estimate) -> None:
    ratios = over_bound(number, NUM_NODES, seeds, estimate)
    found = "; ".join(f"{name} {spread(values)}" for name, values in ratios.items())
    durations = estimate.__name__.replace("_", " ")
    print(f"fixed pool, {number:,} trials, durations {durations}, over bound: {found}")
    if number == DEFAULT_TRIALS and estimate is roughly_known:
        met = "met" if max(ratios["ours"]) <= 1.1 else "NOT met"
        print(f"  line <= 1.1 for each seed: {met}", flush=True)


def report_late(number: int, seeds: Sequence[int]) -> None:
    for rival, ratios in over_rivals(number, NUM_NODES, seeds).items():
        middle, low, high = geometric(ratios)
        print(
            f"nodes late and failing, {number:,} trials, ours over {rival}: "
            f"{middle:.3f}, 95% interval {low:.3f} to {high:.3f}, n={len(ratios)}, "
            f"line: lower end <= 1: {'met' if low <= 1 else 'NOT met'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1_000, 10_000])
    options = parser.parse_args()
    for number in options.trials:
        # Larger sweeps vary less, and take longer.
        seeds = range(max(3, min(options.seeds, options.seeds * 1_000 // number)))
        for estimate in (roughly_known, unknown):
            report_fixed(number, seeds, estimate)
        report_late(number, seeds)
    sweep = make_sweep(0, 10_000, roughly_known)
    large = Simulation(Ours(), sweep, fixed(1024))
    print(
        f"10,000 trials on 1,024 nodes: placed in {large.cpu_s:.1f} s of CPU, line < "
        f"10: {'met' if large.cpu_s < 10 else 'NOT met'}; "
        f"{large.makespan_s / sweep.bound_s(1024):.3f} of the bound"
    )


if __name__ == "__main__":
    main()

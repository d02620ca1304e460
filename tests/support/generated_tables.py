"""Tables of measurements whose truth is known for every configuration.

The physics is not that of the product's laws: a pass has a floor that small batches
cannot go below, an exchange is one ring per tier with its latency and bandwidth, the
slower of the backward pass and the exchange sets the pace, and links inside a node are
shared. Columns are those of published tables: ``curve_id, source, gpu_type, workload,
nodes, gpus, local_batch, accum_steps, global_batch, step_time_s``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

FORWARD = 1 / 3  # of a pass; the exchange can only hide behind the rest
GIGABIT = 1e9 / 8


class Configuration(NamedTuple):
    """Where a step runs, and the batch it takes."""

    gpus: int
    nodes: int
    local_batch: int
    accum_steps: int = 1

    @property
    def global_batch(self) -> int:
        return self.gpus * self.local_batch * self.accum_steps


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Nodes of equal devices; times in seconds, sizes in bytes."""

    per_node: int = 4
    floor_s: float = 0.02
    per_sample_s: float = 0.002
    update_s: float = 0.004
    gradient_bytes: float = 2e8
    inside_bytes_per_s: float = 1e10
    inside_latency_s: float = 2e-5
    contention: float = 0.0  # of each further device inside the node
    between_bytes_per_s: float = 10 * GIGABIT
    between_latency_s: float = 5e-5
    exposed: float = 0.1  # share of the exchange that nothing hides
    largest_local_batch: int = 10_000

    def step_time_s(self, at: Configuration) -> float | None:
        """Return the time of an optimiser step; None where it does not fit."""
        if at.local_batch > self.largest_local_batch or at.nodes > at.gpus:
            return None
        if -(-at.gpus // at.nodes) > self.per_node:
            return None
        one_pass = max(self.floor_s, self.per_sample_s * at.local_batch)
        exchange = self._exchange_s(at)
        hidden = max((1 - FORWARD) * one_pass, (1 - self.exposed) * exchange)
        last = FORWARD * one_pass + hidden + self.exposed * exchange
        return (at.accum_steps - 1) * one_pass + last + self.update_s

    def _exchange_s(self, at: Configuration) -> float:
        inside = -(-at.gpus // at.nodes)
        shared = 1 + self.contention * max(inside - 2, 0)
        rate = self.inside_bytes_per_s / shared
        return self._ring_s(inside, rate, self.inside_latency_s) + self._ring_s(
            at.nodes, self.between_bytes_per_s, self.between_latency_s
        )

    def _ring_s(self, members: int, bytes_per_s: float, latency_s: float) -> float:
        sent = 2 * (members - 1) / members * self.gradient_bytes
        return sent / bytes_per_s + 2 * (members - 1) * latency_s


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """How runs of one configuration differ: a factor whose logarithm is spread.

    ``freedom`` are the degrees of freedom of a Student distribution: few of them give
    heavy tails.
    """

    spread: float = 0.01
    freedom: float = 200.0

    def factors(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.exp(self.spread * rng.standard_t(self.freedom, count))

    def quantiles(self, count: int = 99) -> np.ndarray:
        shares = (np.arange(count) + 0.5) / count
        return np.exp(self.spread * stdtrit(self.freedom, shares))


@dataclass(frozen=True, kw_only=True)
class GeneratedTable:
    """Rows that were measured on a machine, and the machine."""

    name: str
    machine: Machine
    scatter: Scatter = field(default_factory=Scatter)
    rows: pd.DataFrame

    @classmethod
    def measure(
        cls,
        name: str,
        machine: Machine,
        configurations: Iterable[Configuration],
        rng: np.random.Generator,
        scatter: Scatter | None = None,
        repeats: int = 1,
    ) -> "GeneratedTable":
        """Measure configurations in the order given; what does not fit is left out."""
        scatter = scatter or Scatter()
        rows = []
        for at in configurations:
            step_s = machine.step_time_s(at)
            factors = scatter.factors(rng, repeats)
            for factor in factors if step_s is not None else ():
                rows.append((*at, at.global_batch, step_s * factor))
        names = [*Configuration._fields, "global_batch", "step_time_s"]
        named = pd.DataFrame(rows, columns=names).assign(
            curve_id=name, source="generated", gpu_type="made-up GPU", workload=name
        )
        return cls(name=name, machine=machine, scatter=scatter, rows=named)


def linked(gigabits: float, **values: float) -> Machine:
    """Return a machine whose nodes are connected by Ethernet of so many Gbit/s."""
    return replace(Machine(), between_bytes_per_s=gigabits * GIGABIT, **values)  # type: ignore[arg-type]


def grid(
    machine: Machine, sizes: Iterable[int], local_batches: Iterable[int]
) -> Iterator[Configuration]:
    """Yield every local batch at every size, nodes filled one after the other."""
    batches = tuple(local_batches)
    for size in sizes:
        for local in batches:
            yield Configuration(size, -(-size // machine.per_node), local)


def strong(
    machine: Machine, sizes: Iterable[int], totals: Iterable[int]
) -> Iterator[Configuration]:
    """Yield global batches at every size that divides them, accumulated to fit."""
    batches = tuple(totals)
    for size in sizes:
        for total in (t for t in batches if t % size == 0):
            share = total // size
            passes = next(
                n
                for n in range(1, share + 1)
                if share % n == 0 and share // n <= machine.largest_local_batch
            )
            nodes = -(-size // machine.per_node)
            yield Configuration(size, nodes, share // passes, passes)


def random_machine(rng: np.random.Generator, **values: float) -> Machine:
    """Draw a workload and a machine; what is given stays."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    per_sample_s = between(5e-4, 8e-3)
    drawn = Machine(
        floor_s=per_sample_s * between(4, 40),
        per_sample_s=per_sample_s,
        update_s=between(1e-3, 1e-2),
        gradient_bytes=between(4e7, 1.2e9),
        inside_bytes_per_s=between(4e9, 1e11),
        inside_latency_s=between(5e-6, 5e-5),
        between_bytes_per_s=float(rng.choice([1, 10, 100])) * GIGABIT,
        between_latency_s=between(5e-6, 1e-4),
        exposed=float(rng.uniform(0.05, 0.4)),
    )
    return replace(drawn, **values)  # type: ignore[arg-type]


DOUBLINGS = (1, 2, 4, 8, 16, 32)
BATCHES = (16, 32, 64, 128)
PARTLY_FILLED = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (4, 4), (8, 4))

Maker = Callable[[str, np.random.Generator], GeneratedTable]


def _linked_grid(gigabits: float) -> Maker:
    def make(name: str, rng: np.random.Generator) -> GeneratedTable:
        machine = random_machine(rng, between_bytes_per_s=gigabits * GIGABIT)
        return GeneratedTable.measure(
            name, machine, grid(machine, DOUBLINGS, BATCHES), rng
        )

    return make


def _scattering(scatter: Scatter, repeats: int) -> Maker:
    def make(name: str, rng: np.random.Generator) -> GeneratedTable:
        machine = random_machine(rng)
        asked = grid(machine, DOUBLINGS, BATCHES[1:])
        return GeneratedTable.measure(name, machine, asked, rng, scatter, repeats)

    return make


def _contention(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng, per_node=8, contention=float(rng.uniform(0.2, 0.8)))
    asked = grid(machine, (1, 2, 4, 8, 16, 32, 64), BATCHES)
    return GeneratedTable.measure(name, machine, asked, rng)


def _odd(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng, per_node=3)
    asked = grid(machine, (1, 2, 3, 6, 9, 12, 15), (20, 36, 50, 90))
    return GeneratedTable.measure(name, machine, asked, rng)


def _plain(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng)
    asked = strong(machine, (1, 2, 3, 4, 8, 12, 16), (96, 192, 384))
    return GeneratedTable.measure(name, machine, asked, rng)


def _accumulation(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng, largest_local_batch=64)
    asked = strong(machine, (1, 2, 3, 4, 8, 12, 16, 24, 32), (768, 1536))
    return GeneratedTable.measure(name, machine, asked, rng)


def _weak(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng)
    asked = grid(machine, DOUBLINGS, (48,))
    return GeneratedTable.measure(name, machine, asked, rng, repeats=2)


def _missing(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng)
    asked = list(strong(machine, (1, 2, 4, 8, 16, 32), (256, 512, 1024)))
    left_out = int(rng.choice([2, 4]))
    kept = [at for at in asked if (at.gpus, at.global_batch) != (left_out, 512)]
    kept = [at for at in kept if (at.gpus, at.global_batch) != (1, 1024)]
    return GeneratedTable.measure(name, machine, kept, rng)


def _partly_filled(name: str, rng: np.random.Generator) -> GeneratedTable:
    machine = random_machine(rng)
    places = (*PARTLY_FILLED, (16, 4), (16, 8), (32, 8))
    asked = [Configuration(*place, local) for place in places for local in BATCHES]
    return GeneratedTable.measure(name, machine, asked, rng)


MAKERS: dict[str, Maker] = {
    "1 GbE": _linked_grid(1),
    "10 GbE": _linked_grid(10),
    "100 GbE": _linked_grid(100),
    "contention": _contention,
    "odd sizes": _odd,
    "plain": _plain,
    "accumulation": _accumulation,
    "weak": _weak,
    "missing batch": _missing,
    "partly filled": _partly_filled,
    "scatter 5%": _scattering(Scatter(spread=0.05), 2),
    "scatter 15%": _scattering(Scatter(spread=0.15), 3),
    "heavy tails": _scattering(Scatter(spread=0.06, freedom=2.5), 3),
}
"""A table of each kind that users have, by its name."""


def generated_tables(seeds: Iterable[int] = (0,)) -> Iterator[GeneratedTable]:
    """Yield a table of each kind for every seed."""
    for seed in seeds:
        for index, (name, make) in enumerate(MAKERS.items()):
            yield make(f"{name} {seed}", np.random.default_rng([seed, index]))

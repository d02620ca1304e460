"""How well laws predict kinds of machines that are in no published table.

    python benchmarks/kinds.py [--machines 2] [--tasks T1,T3] [--rivals paleo,xgboost]

Each machine has three workloads: one of mostly fixed cost, one that grows with less
than the batch, one in proportion to it. Times scatter by 5% from placement to placement
and by 3% from batch to batch. The kinds, with ``k`` devices on each of ``m`` nodes:

crowded: devices of a node are in each other's way, up to twice as slow on a full node;
between nodes next to nothing is lost.
jump: the exchange across the second node costs 0.5 to 1.5 times what computation does,
over further ones 10% more per doubling.
flat: one ring, to which the node boundary does not matter.
pair: as jump, but exactly two nodes cost a third more.
slow: as jump, but the exchange costs 10 to 30 times what computation does.

The tasks are those of ``scaling_tasks.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
from laws import OURS, ours, rival, table
from scaling_tasks import cases

PER_NODE, NODES = 8, (1, 2, 3, 4, 6, 8)
PLACEMENT_NOISE, NOISE = 0.05, 0.03
# fixed share at the middle batch, exponent of the rest, seconds of a pass there
WORKLOADS = {"fixed": (0.95, 1.0, 0.01), "less": (0.3, 0.9, 0.2), "linear": (0.1, 1, 1)}
BATCHES = np.round(8 * np.sqrt(2) ** np.arange(8))

Costs = Callable[[float, int], tuple[float, float]]
"""Of ``k`` devices on each of ``m`` nodes: what computation is multiplied by, and the
exchange, relative to computation at the middle batch."""


def ring(members: float) -> float:
    """Return the volume of a ring all-reduce, relative to two members."""
    return 2 * (members - 1) / members


def kinds(rng: np.random.Generator) -> dict[str, Costs]:
    """Draw one machine of each kind."""
    crowding, level, jump = rng.uniform((0.5, 0.05, 0.5), (1.0, 0.3, 1.5))

    def stepped(k: float, m: int, cost: float) -> float:
        return level * ring(k) + (cost * (m / 2) ** 0.14 if m > 1 else 0.0)

    return {
        "crowded": lambda k, m: (1 + crowding * (k - 1) / 7, 0.04 * (m > 1)),
        "jump": lambda k, m: (1, stepped(k, m, jump)),
        "flat": lambda k, m: (1, 2 * level * ring(k * m)),
        "pair": lambda k, m: (1, stepped(k, m, jump) * (1.33 if m == 2 else 1.0)),
        "slow": lambda k, m: (1, stepped(k, m, 20 * jump)),
    }


def measured(name: str, costs: Costs, rng: np.random.Generator) -> pd.DataFrame:
    """Return the table of one machine, in the columns of published ones."""
    rows = []
    for workload, (fixed, exponent, pass_s) in WORKLOADS.items():
        for nodes in NODES:
            for devices in [k * nodes for k in range(1, PER_NODE + 1)]:
                crowding, exchange = costs(devices / nodes, nodes)
                luck = PLACEMENT_NOISE * rng.standard_normal()
                for batch in BATCHES:
                    work = fixed + (1 - fixed) * (batch / BATCHES[4]) ** exponent
                    log_noise = luck + NOISE * rng.standard_normal()
                    step_s = pass_s * (work * crowding + exchange)
                    curve = f"{name} {workload}"
                    row = (curve, name, nodes, devices, batch, step_s, log_noise)
                    rows.append(row)
    names = ["curve_id", "gpu_type", "nodes", "gpus", "local_batch", "true_s", "noise"]
    frame = pd.DataFrame(rows, columns=names)
    frame["step_time_s"] = frame.pop("true_s") * np.exp(frame.pop("noise"))
    return frame.assign(source="declared", accum_steps=1)


def main() -> None:
    """Print errors and coverage by kind and task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--tasks", default="T1,T2,T2m,T3,T3m,T5,T5m,T7,T8")
    parser.add_argument("--rivals", default="paleo,median,pollux,power,xgboost")
    arguments = parser.parse_args()
    tables, kind = [], {}
    for seed in range(arguments.machines):
        rng = np.random.default_rng(seed)
        for name, costs in kinds(rng).items():
            tables.append(measured(f"{name} {seed}", costs, rng))
            kind[f"{name} {seed}"] = name
    published = pd.concat(tables, ignore_index=True)
    found = [c for c in cases(published) if c.task in arguments.tasks.split(",")]
    machine = dict(zip(published["curve_id"], published["gpu_type"], strict=True))
    laws = {name: rival(name) for name in filter(None, arguments.rivals.split(","))}
    rows = table(found, {**laws, OURS: ours})
    rows["kind"] = rows["curve"].map(machine).map(kind)
    for value in ("error", "cover"):
        groups = rows.groupby(["law", "kind", "task"])[value].mean().unstack("law")
        mine, others = groups.pop(OURS), groups
        shown = pd.DataFrame({OURS: mine})
        if value == "error" and len(others.columns):
            best = others.min(axis=1)
            shown = shown.assign(rival=best, which=others.idxmin(axis=1))
        print(f"\n{value}, mean over curves\n{shown.round(1).to_string()}")


if __name__ == "__main__":
    main()

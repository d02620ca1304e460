"""How well laws predict machines whose truth is declared, from small allocations.

    python benchmarks/declared.py [--machines 24] [--per-node 4]

Machines are drawn at random: links, overlap, the lead of the slowest rank, noise. Each
is measured on up to a quarter of its devices, three repeats each, and asked for the
rest, once with its rows as they are and once with every twentieth run held up by a
straggler.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from laws import OURS, RIVALS

from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.training.workloads.declared_machine import (
    DeclaredMachine,
    declared_step_time,
)

SEEN, ASKED = (1, 2, 4, 8, 16), (32, 64)
BATCHES = (8, 16, 32)
NUM_REPEATS = 3
LAWS = {OURS: StepTimeLaw, **{n: RIVALS[n] for n in ("pollux", "paleo", "amdahl")}}


def random_machine(rng: np.random.Generator) -> DeclaredMachine:
    """Draw a machine."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    return DeclaredMachine(
        sample_time_s=between(5e-4, 1e-2),
        fixed_time_s=between(2e-3, 3e-2),
        intra_latency_s=between(5e-6, 1e-4),
        intra_bandwidth_bytes_per_s=between(5e9, 1e11),
        inter_latency_s=between(2e-5, 5e-4),
        inter_bandwidth_bytes_per_s=between(1e9, 1e10),
        overlap=float(rng.choice([0.0, rng.uniform(0.1, 0.7)])),
        imbalance=float(rng.choice([0.0, rng.uniform(0.01, 0.06)])),
        noise=float(rng.uniform(0.003, 0.02)),
    )


def measured(
    machine: DeclaredMachine,
    sizes: tuple[int, ...],
    per_node: int,
    rng: np.random.Generator,
    straggling: float,
) -> pd.DataFrame:
    """Return one row per run."""
    rows = []
    for size in sizes:
        nodes = -(-size // per_node)
        for batch in BATCHES:
            true = declared_step_time(
                machine,
                local_batch_size=batch,
                devices_per_node=[min(size, per_node)] * nodes,
            )
            noise = machine.noise * rng.standard_normal(NUM_REPEATS)
            held_up = np.where(rng.random(NUM_REPEATS) < straggling, 1.5, 1.0)
            for factor in np.exp(noise) * held_up:
                rows.append((size, nodes, batch, true * factor, true))
    names = ["world_size", "num_nodes", "local_batch_size", "step_time_s", "true_s"]
    return pd.DataFrame(rows, columns=names)


def main() -> None:
    """Print error and coverage per law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=24)
    parser.add_argument("--per-node", type=int, default=4)
    arguments = parser.parse_args()
    found = []
    for straggling in (0.0, 0.05):
        for seed in range(arguments.machines):
            rng = np.random.default_rng(seed)
            machine = random_machine(rng)
            per_node = arguments.per_node
            seen = measured(machine, SEEN, per_node, rng, straggling)
            asked = measured(machine, ASKED, per_node, rng, 0.0)
            for name, law in LAWS.items():
                answer = law.fit(seen.drop(columns="true_s")).predict(asked)
                ratio = answer["step_time_s"] / answer["true_s"]
                inside = asked["step_time_s"].between(
                    answer["step_time_lo_s"], answer["step_time_hi_s"]
                )
                found.append(
                    (straggling, name, abs(ratio - 1).mean() * 100, inside.mean() * 100)
                )
    table = pd.DataFrame(found, columns=["straggling", "law", "error", "cover"])
    print(table.groupby(["straggling", "law"]).mean().round(1).to_string())


if __name__ == "__main__":
    main()

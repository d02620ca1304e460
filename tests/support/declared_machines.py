"""Machines whose truth is declared, and the rows a sweep on them would give."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

Machine = Mapping[str, float]


def declared_step_time(
    machine: Machine, world_size: int, local_batch: float, accumulation: int = 1
) -> float:
    """A ring in the node, one between nodes, a share of the exchange hidden."""
    per_node = int(machine["gpus_per_node"])
    inner, outer = min(world_size, per_node), -(-world_size // per_node)
    slow = 1 + (machine["imbalance"] if world_size > 1 else 0.0)
    compute = (machine["fixed"] + machine["per_sample"] * local_batch) * slow
    exchange = 0.0
    for members, tier in ((inner, "intra"), (outer, "inter")):
        exchange += 2 * (members - 1) * machine[f"{tier}_latency"]
        exchange += 2 * (members - 1) / members * machine[f"{tier}_transfer"]
    hidden = min(machine["overlap"] * exchange, compute)
    return accumulation * compute + exchange - hidden


def sweep_rows(
    machine: Machine,
    rng: np.random.Generator,
    *,
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    batches: tuple[int, ...] = (8, 16, 32),
    repeats: int = 3,
    noise: float = 0.01,
) -> pd.DataFrame:
    rows = [
        {
            "world_size": size,
            "num_nodes": -(-size // int(machine["gpus_per_node"])),
            "local_batch_size": batch,
            "gradient_accumulation_steps": 1,
            "step_time_s": declared_step_time(machine, size, batch)
            * float(np.exp(noise * rng.standard_normal())),
        }
        for size in sizes
        for batch in batches
        for _ in range(repeats)
    ]
    return pd.DataFrame(rows)


def random_machine(rng: np.random.Generator) -> dict[str, float]:
    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    return {
        "gpus_per_node": int(rng.choice([2, 4])),
        "fixed": between(2e-3, 3e-2),
        "per_sample": between(5e-4, 1e-2),
        "intra_latency": between(5e-6, 1e-4),
        "intra_transfer": between(1e-3, 2e-2),
        "inter_latency": between(2e-5, 5e-4),
        "inter_transfer": between(1e-2, 1e-1),
        "overlap": 0.0 if rng.random() < 0.5 else float(rng.uniform(0.1, 0.6)),
        "imbalance": 0.0 if rng.random() < 0.5 else float(rng.uniform(0.01, 0.06)),
    }

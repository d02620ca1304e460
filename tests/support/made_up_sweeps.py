"""Sweeps on machines whose truth is declared."""

import numpy as np
import pandas as pd


def step_time(size: int, batch: float, *, per_node: int = 4, passes: int = 1) -> float:
    """One ring as slow as its slowest link; nothing overlaps."""
    compute = passes * (0.010 + 0.004 * batch)
    if size == 1:
        return compute
    inner, outer = min(size, per_node), -(-size // per_node)
    within = 2 * (inner - 1) / inner * 0.004
    between = 2 * (outer - 1) * 2e-3 + 2 * (outer - 1) / outer * 0.03
    return compute + within + between


def sweep(
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16),
    *,
    global_batch: int | None = 256,
    local_batches: tuple[int, ...] = (16, 32),
    per_node: int = 4,
    repeats: int = 3,
    noise: float = 0.01,
    seed: int = 0,
    **columns: object,
) -> pd.DataFrame:
    """Throughput trials at a fixed global batch, or, None, at fixed local batches."""
    rng = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        for local in local_batches:
            passes = 1
            if global_batch is not None:
                if global_batch % (size * local):
                    continue
                passes = global_batch // (size * local)
            for repeat in range(repeats):
                time = step_time(size, local, per_node=per_node, passes=passes)
                rows.append(
                    {
                        "kind": "throughput",
                        "outcome": "completed",
                        "repeat": repeat,
                        "world_size": size,
                        "num_nodes": -(-size // per_node),
                        "local_batch_size": local,
                        "gradient_accumulation_steps": passes,
                        "global_batch_size": size * local * passes,
                        "step_time_s": time * np.exp(noise * rng.standard_normal()),
                        "num_steps": 50,
                        "start_up_s": 2.0,
                        "allocated_gpu_s": size * 10.0,
                    }
                )
    base = {"workload": "made_up", "device_type": "cuda", "device_name": "A100"}
    return pd.DataFrame(rows).assign(**{**base, "emulated": False, **columns})


def convergence(
    batches: tuple[int, ...] = (64, 128, 256, 512, 1024),
    *,
    seeds: int = 3,
    critical: float = 256,
    lr_rule: str = "sqrt",
    seed: int = 1,
) -> pd.DataFrame:
    """Convergence trials to val_acc >= 0.9."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "kind": "convergence",
            "outcome": "completed",
            "world_size": 1,
            "num_nodes": 1,
            "local_batch_size": 32,
            "gradient_accumulation_steps": batch // 32,
            "global_batch_size": batch,
            "samples_to_target": round(
                100_000 * (1 + batch / critical) * np.exp(0.03 * rng.standard_normal())
            ),
            "reached_target": True,
            "lr_rule": lr_rule,
            "learning_rate": 0.1 * (batch / 64) ** 0.5,
            "target_metric": "val_acc",
            "metric_mode": "max",
            "target_value": 0.9,
        }
        for batch in batches
        for _ in range(seeds)
    ]
    base = {"workload": "made_up", "device_type": "cuda", "device_name": "A100"}
    return pd.DataFrame(rows).assign(**base, emulated=False)

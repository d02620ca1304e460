"""Made-up runs with known laws, and hand-made recommendations about them."""

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scalelab.inputs.allocation import Allocation
from scalelab.inputs.numerals import Interval
from scalelab.laws.left_out import LeftOut
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import (
    Knee,
    LearningRatePlan,
    NextTrial,
    ParameterRow,
    Recommendation,
)
from scalelab.recommend.answer.rows import BatchPlan, OutlookRow
from scalelab.records.columns import SCHEMA_VERSION

JOB_SAMPLES = 5_000_000.0
ASSUMED = Fact(
    "accuracy_not_measured", {"global_batch_size": 512, "amount": "90 epochs"}
)
PER_SAMPLE_S, FIXED_S, INTRA_S, INTER_S = 2e-3, 4e-3, 3e-3, 4e-3

Row = dict[str, Any]


def step_time_s(world_size: int, num_nodes: int, local_batch: float) -> float:
    """The made-up law: compute, then an exchange that grows with the ring."""
    link = INTER_S if num_nodes > 1 else INTRA_S
    sync = link * (2 * (world_size - 1) / world_size + 0.05 * (world_size - 1))
    return FIXED_S + PER_SAMPLE_S * local_batch + sync


def trial_row(world_size: int, local_batch: int, **values: Any) -> Row:
    num_nodes = values.pop("num_nodes", -(-world_size // 4))
    step = step_time_s(world_size, num_nodes, local_batch) * values.pop("noise", 1.0)
    sync = step_time_s(world_size, num_nodes, 0) - FIXED_S
    return {
        "schema_version": SCHEMA_VERSION,
        "run": "made-up",
        "trial_id": f"{zlib.crc32(repr((world_size, local_batch, values)).encode()):x}",
        "repeat": 0,
        "attempt": 1,
        "outcome": "completed",
        "kind": "throughput",
        "workload": "resnet_cifar",
        "emulated": False,
        "parallelism": "ddp",
        "device_type": "cuda",
        "device_name": "A100",
        "num_nodes": num_nodes,
        "world_size": world_size,
        "data_parallel_size": world_size,
        "local_batch_size": local_batch,
        "gradient_accumulation_steps": 1,
        "global_batch_size": local_batch * world_size,
        "precision": "bf16",
        "seed": 0,
        "num_steps": 50,
        "step_time_s": step,
        "step_time_lo_s": 0.99 * step,
        "step_time_hi_s": 1.01 * step,
        "data_wait_s": 0.02 * step,
        "compute_s": 0.95 * (step - sync),
        "exposed_sync_s": sync,
        "optimizer_s": 0.01 * step,
        "throughput_samples_per_s": local_batch * world_size / step,
        "allocated_gpu_s": 60.0 * world_size,
        "started_at": "2026-11-20T08:00:00+00:00",
        "ended_at": "2026-11-20T08:01:00+00:00",
        "hosts": [f"node{index}" for index in range(num_nodes)],
        "versions": '{"torch": "2.13.0", "scalelab": "0.1.0"}',
        "validity": [],
    } | values


def strong_scaling(
    world_sizes: Iterable[int],
    rng: np.random.Generator,
    *,
    global_batch: int = 512,
    repeats: int = 3,
    **values: Any,
) -> list[Row]:
    return [
        trial_row(
            count,
            global_batch // count,
            repeat=repeat,
            noise=float(np.exp(0.01 * rng.standard_normal())),
            **values,
        )
        for repeat in range(repeats)
        for count in world_sizes
    ]


def convergence_rows(rng: np.random.Generator, **values: Any) -> list[Row]:
    """Samples to target grow beyond a critical batch; at 4096 nobody gets there."""
    rows = []
    for batch in (64, 128, 256, 512, 1024, 4096):
        for seed in range(3):
            samples = int(40_000 * (1 + batch / 600) * np.exp(0.08 * rng.normal()))
            reached = batch < 4096
            rows.append(
                trial_row(
                    1,
                    batch,
                    seed=seed,
                    kind="convergence",
                    outcome="completed" if reached else "target_not_reached",
                    lr_rule="linear",
                    target_metric="val_acc",
                    metric_mode="max",
                    target_value=0.95,
                    reached_target=reached,
                    samples_to_target=samples if reached else None,
                    num_samples=samples if reached else 200_000,
                    reason=None if reached else "val_acc was 0.91 after 200000 samples",
                    **values,
                )
            )
    return rows


def around(value: float, width: float) -> Interval:
    return Interval(value=value, lo=value / (1 + width), hi=value * (1 + width))


def outlook_row(world_size: int, global_batch: int, **values: Any) -> OutlookRow:
    num_nodes = values.pop("num_nodes", -(-world_size // 4))
    width = values.pop("width", 0.02)
    local = global_batch // world_size
    step = step_time_s(world_size, num_nodes, local)
    start = step_time_s(1, 1, global_batch)
    time_s = JOB_SAMPLES / global_batch * step
    fields: dict[str, Any] = {
        "allocation": str(
            Allocation(devices_per_node=(-(-world_size // num_nodes),) * num_nodes)
        ),
        "world_size": world_size,
        "num_nodes": num_nodes,
        "batch": BatchPlan(
            local_batch_size=local,
            data_parallel_size=world_size,
            gradient_accumulation_steps=1,
            global_batch_size=global_batch,
        ),
        "settings": {},
        "device": "A100",
        "samples_per_step": global_batch,
        "step_time_s": around(step, width),
        "throughput_samples_per_s": around(global_batch / step, width),
        "throughput_tokens_per_s": None,
        "flops_utilization": None,
        "samples": Interval(value=JOB_SAMPLES, lo=JOB_SAMPLES, hi=JOB_SAMPLES),
        "amounts": {
            "time": around(time_s, width),
            "device_hours": around(time_s * world_size / 3600, width),
            "money": None,
        }
        | values.pop("amounts", {}),
        "scaling_efficiency": around(start / (step * world_size), width),
        "scaling": "strong" if world_size > 1 else None,
        "compared_with": {},
        "next_world_size": 2 * world_size,
        "next_time_change": -0.4,
        "next_gpu_hours_change": 0.1,
        "basis": "measured",
        "probability": None,
        "is_pareto": True,
        "is_eligible": True,
        "is_chosen": False,
        "is_baseline": world_size == 1,
    }
    return OutlookRow(**fields | values)


def recommendation(rows: Iterable[OutlookRow], **values: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "workload": "resnet_cifar",
        "device_name": "A100",
        "node_group": "",
        "device_word": "GPU",
        "device_hour_word": "GPU-h",
        "rows": tuple(rows),
        "meets_constraints": True,
        "limits": (),
        "condition": "",
        "objective": "the fastest allocation at which a device added still brings half",
        "interval": 0.8,
        "baseline": "1 GPU",
        "learning_rate": LearningRatePlan(rule="linear", value=0.4),
        "knee": Knee(
            lo=16,
            hi=32,
            marginal_return=0.5,
            term="inter-node all-reduce",
            probability_in_range=0.97,
            largest_measured=32,
        ),
        "next_trial": NextTrial(
            allocation="8x4",
            world_size=32,
            batch=BatchPlan(
                local_batch_size=16,
                data_parallel_size=32,
                gradient_accumulation_steps=1,
                global_batch_size=512,
            ),
            steps=60,
            gpu_hours=1.1,
            why="it would settle whether 32 GPUs still pay",
        ),
        "confidence": 0.9,
        "held": {"precision": "fp32"},
        "price": None,
        "currency": "usd",
        "facts": (ASSUMED,),
        "left_out": (LeftOut(("shared_node",), 2),),
        "left_out_of_convergence": (),
        "num_observations": 33,
        "sweep_gpu_hours": 6.3,
        "is_emulated": False,
        "law": "scalelab",
        "formula": "T = (A - 1) C + (C^g + S^g)^(1/g) (Qiao et al. 2021)",
        "parameters": (
            ParameterRow(
                law="step time",
                curve="resnet_cifar",
                name="compute_per_sample",
                value=2e-3,
                lo=1.9e-3,
                hi=2.1e-3,
                unit="s",
                is_identified=True,
                remedy="",
            ),
        ),
    }
    return Recommendation(**fields | values)


def planned(
    world_sizes: Iterable[int], chosen: int, measured_up_to: int, **values: Any
) -> tuple[OutlookRow, ...]:
    rows = [
        outlook_row(
            count,
            512,
            is_chosen=count == chosen,
            basis="measured" if count <= measured_up_to else "extrapolated",
            width=0.02 if count <= measured_up_to else 0.25,
            **values,
        )
        for count in world_sizes
    ]
    return tuple(replace(row, is_pareto=not is_beaten(row, rows)) for row in rows)


def is_beaten(row: OutlookRow, rivals: Iterable[OutlookRow]) -> bool:
    return any(
        rival.time_s.value < row.time_s.value
        and rival.gpu_hours.value < row.gpu_hours.value
        for rival in rivals
    )

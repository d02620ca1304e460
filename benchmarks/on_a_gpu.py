"""What only a GPU can show: sweeps of one rank with NCCL, GradScaler and NVML's energy.

Four sweeps on one GPU, meant for ten minutes at most: `digits_mlp`, `resnet_cifar` on
random pictures (or --data), and a DDP command under torchrun, with the probe and
without, each in fp32 and in fp16 with its GradScaler. Their rows are kept as runs in
--runs. Three figures have a peer in the same run: the step time of the command is held
against the rate that it prints itself (line: within 5%) and, as the probe has seen it,
against what is read from its log where there is no probe (line: within 5%), the energy
of a sweep's trials against the GPU's own counter over the sweep (line: not above it).
Energy and peak memory are measured in the ranks of workloads; the rows of a command
have neither. --device cpu tries the script where there is no GPU, and shows nothing of
one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

import scalelab

HERE = Path(__file__).parent
RATE_LINE = 0.05
NUM_PICTURES, RECORD_BYTES = 10_000, 3073  # of a file of CIFAR-10, in its binary layout
PROBED, BY_LOG = "gpu-command", "gpu-command-by-log"
SEEN_BY = {PROBED: "inside", BY_LOG: "log"}
WORDS = ("workload", "precision", "local_batch_size")


def experiments(device: str, data: Path) -> Mapping[str, dict[str, Any]]:
    """Return the experiments by their names; on a CPU much smaller ones."""
    is_gpu = device == "cuda"
    common = {
        "measure": {"warmup_steps": 20, "steps": 200 if is_gpu else 20, "repeats": 3},
        "job": {"samples": 10_000_000},
        "gpus": [1],
        "precision": ["fp32", "fp16"] if is_gpu else ["fp32"],
        "site": {"device_type": device, "gpus_per_node": 1},
    }
    width = 4096 if is_gpu else 64
    command = {
        **common,
        "command": "python train.py --batch-size {local_batch_size} "
        f"--precision {{precision}} --width {width}",
        "launcher": "torchrun",
        "code": {"root": str(HERE / "gpu_command"), "snapshot": "train.py"},
        "metrics": {
            "regex": r"step (?P<step>\d+) \| samples (?P<samples>\d+) \| "
            r"loss (?P<loss>\S+)"
        },
        "local_batch_size": [1024],
    }
    return {
        "gpu-digits": {
            **common,
            "workload": {"name": "digits_mlp", "hidden_sizes": [width, width]},
            "local_batch_size": [256],
        },
        "gpu-resnet": {
            **common,
            "workload": {"name": "resnet_cifar", "depth": 20, "data_dir": str(data)},
            "local_batch_size": [256 if is_gpu else 4],
        },
        PROBED: command,
        BY_LOG: {**command, "probe": "none"},
    }


def make_pictures(directory: Path) -> None:
    """Write CIFAR-10's binary layout with random pictures: they cost what others do."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (NUM_PICTURES, RECORD_BYTES), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(directory / f"{name}.bin")


class EnergyCounter:
    """Joules that the first GPU has used since its driver was loaded; NaN on a CPU."""

    def __init__(self, device: str) -> None:
        self._handle = None
        if device == "cuda":
            import pynvml

            pynvml.nvmlInit()
            self._read = pynvml.nvmlDeviceGetTotalEnergyConsumption
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def joules(self) -> float:
        return float("nan") if self._handle is None else self._read(self._handle) / 1e3


def own_over_ours(rows: pd.DataFrame) -> float:
    """Return the median of the program's own step time over ours; NaN: it says none."""
    own, ours = rows["reported_step_time_s"], rows["step_time_s"]
    return float((own.astype(float) / ours.astype(float)).median())


def findings(rows: pd.DataFrame, has_meters: bool, counted_j: float) -> list[str]:
    """Return what is wrong with the rows of a sweep; empty: nothing."""
    wrong = [f"{count} trials {outcome}" for outcome, count in ended_badly(rows)]
    if has_meters:
        if not rows["energy_source"].eq("measured").fillna(False).all():
            wrong.append("energy was not measured")
        if not (rows["gpu_memory_peak_bytes"].astype(float) > 0).all():
            wrong.append("no peak of device memory")
        if energy_of_trials(rows) > counted_j:
            wrong.append("more energy in trials than the device counted")
    if abs(own_over_ours(rows) - 1) > RATE_LINE:
        wrong.append(f"the program's own step takes {own_over_ours(rows):.3f} of ours")
    return wrong


def probed_over_log(probed: pd.DataFrame, by_log: pd.DataFrame) -> list[str]:
    """Print what the probe measures over what the log says; return what is wrong."""
    wrong = []
    for precision, alike in probed.groupby("precision"):
        ours = alike["step_time_s"].astype(float).to_numpy()
        theirs = by_log["step_time_s"][by_log["precision"] == precision].astype(float)
        ratios = np.divide.outer(ours, theirs.to_numpy())
        print(
            f"{precision}: step time by the probe over that by the log "
            f"{np.median(ratios):.3f} [{ratios.min():.3f} to {ratios.max():.3f}]"
        )
        if abs(np.median(ratios) - 1) > RATE_LINE:
            wrong.append(f"{precision}: the probe and the log differ")
    return wrong


def energy_of_trials(rows: pd.DataFrame) -> float:
    return float(rows["energy_j"].astype(float).sum())


def ended_badly(rows: pd.DataFrame) -> list[tuple[str, int]]:
    outcomes = rows["outcome"].value_counts()
    return [(str(name), int(n)) for name, n in outcomes.items() if name != "completed"]


def show(name: str, rows: pd.DataFrame) -> None:
    for key, alike in rows.groupby(list(WORDS), dropna=False):
        step_ms = 1e3 * alike["step_time_s"].astype(float)
        peak_gib = alike["gpu_memory_peak_bytes"].astype(float).max() / 2**30
        trial_j = alike["energy_j"].astype(float).median()
        marks = sorted(set(alike["validity"].explode().dropna()))
        print(
            f"{name}: {', '.join(map(str, key))}: step {step_ms.median():.3f} ms "
            f"[{step_ms.min():.3f} to {step_ms.max():.3f}, n={len(alike)}], peak "
            f"{peak_gib:.2f} GiB, energy {trial_j:.0f} J a trial, "
            f"own step over ours {own_over_ours(alike):.3f}, marks {marks}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--data", type=Path, help="CIFAR-10; default: random pictures")
    options = parser.parse_args()

    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here. --device cpu tries the script without one.")
        return 2
    if options.device == "cpu":
        print("On a CPU: this tries the script, and shows nothing of a GPU.")

    data = options.data or options.runs / "random-pictures"
    asked = experiments(options.device, data.absolute())
    if taken := [name for name in asked if (options.runs / name).exists()]:
        print(f"{options.runs} holds {', '.join(taken)} already. Name another --runs.")
        return 2

    options.runs.mkdir(parents=True, exist_ok=True)
    if options.data is None:
        make_pictures(data)
    counter, is_well = EnergyCounter(options.device), True
    commands = {}
    for name, experiment in asked.items():
        path = options.runs / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, **experiment}, sort_keys=False))
        before_j = counter.joules()
        rows = scalelab.sweep(path, directory=options.runs / name).observations
        show(name, rows)
        counted_j = counter.joules() - before_j
        has_meters = options.device == "cuda" and "command" not in experiment
        if has_meters:
            own_j = energy_of_trials(rows)
            print(f"{name}: {own_j:.0f} J in trials, {counted_j:.0f} J over the sweep")
        wrong = findings(rows, has_meters, counted_j)
        if name in SEEN_BY:
            commands[name] = rows
            if not rows["measured_by"].eq(SEEN_BY[name]).all():
                wrong.append(f"steps were seen by {set(rows['measured_by'])}")
        print(f"{name}: {'; '.join(wrong) if wrong else 'well'}")
        is_well = is_well and not wrong
    wrong = probed_over_log(commands[PROBED], commands[BY_LOG])
    print(f"the probe: {'; '.join(wrong) if wrong else 'well'}")
    return 0 if is_well and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())

"""A program that takes the time of its layout, swept over layouts by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_sweeps import Sweep, rows

TRAIN = """\
import argparse, json, os, time

options = argparse.ArgumentParser()
for name in ("tensor", "micro", "batch", "data"):
    options.add_argument(f"--{name}", type=int)
asked = options.parse_args()
stages = int(os.environ["SCALELAB_PIPELINE_PARALLEL_SIZE"])
assert "SCALELAB_BATCH_SIZE_PER_NODE" not in os.environ
assert asked.tensor * stages * asked.data == int(os.environ["SCALELAB_WORLD_SIZE"])
passes = asked.batch // (asked.micro * asked.data)
assert passes == int(os.environ["SCALELAB_GRADIENT_ACCUMULATION_STEPS"])
pass_s = 0.015 * asked.micro / (asked.tensor * stages) + 0.01 * (asked.tensor - 1)
with open(os.environ["SCALELAB_METRICS"], "a") as file:
    for step in range(1, 15):
        time.sleep((passes + stages - 1) * pass_s)
        said = {"step": step, "samples": step * asked.batch}
        print(json.dumps(said), file=file, flush=True)
"""
EXPERIMENT = """\
name: small
command: >-
  python train.py --tensor {tensor_parallel_size} --data {data_parallel_size}
  --micro {micro_batch_size} --batch {global_batch_size}
uses: [SCALELAB_PIPELINE_PARALLEL_SIZE]
launcher: none
code: {snapshot: [train.py]}
measure: {long_trial: none, warmup_steps: 2, steps: 10, repeats: 1, canary_every: 0}
job: {samples: 10000}
gpus: 2
local_batch_size: 2
global_batch_size: 8
layout: {tensor: [1, 2], pipeline: [1, 2]}
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_layouts_are_swept_and_the_fastest_is_recommended(
    sweep: Sweep, here: Path
) -> None:
    Path("train.py").write_text(TRAIN)
    done = sweep(EXPERIMENT)
    assert done.returncode == 0, done

    measured = {
        (
            row["options.tensor_parallel_size"],
            row["options.pipeline_parallel_size"],
        ): row
        for row in rows()
    }
    # tensor 2 x pipeline 2 are four ranks, and there are two.
    assert set(measured) == {(1, 1), (1, 2), (2, 1)}
    for (tensor, pipeline), row in measured.items():
        assert row["outcome"] == "completed", row
        assert row["data_parallel_size"] == 2 // (tensor * pipeline)
        passes = 2 if tensor * pipeline == 1 else 4
        assert row["gradient_accumulation_steps"] == passes
        assert row["global_batch_size"] == 8
    # 2 x 30 ms; (4 + 1) x 15 ms; 4 x (15 + 10) ms
    times = {key: row["step_time_s"] for key, row in measured.items()}
    assert times[1, 1] < times[1, 2] < times[2, 1]
    said = " ".join(done.stdout.split())
    assert "pipeline_parallel_size 1, tensor_parallel_size 1" in said
    assert "8=2x2x2" in done.stdout

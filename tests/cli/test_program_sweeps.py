"""Two programs with launchers and outputs of their own in one real sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_specs import MEET
from real_sweeps import Sweep, rows

from scalelab.session import load

LINES = f"""{MEET}
import argparse
held = meet()
options = argparse.ArgumentParser()
options.add_argument("--batch", type=int)
batch, ranks = options.parse_args().batch, int(os.environ["WORLD_SIZE"])
assert os.environ["MASTER_PORT"]
for step in range(1, 15):
    time.sleep(0.002 * batch)
    if os.environ["RANK"] == "0":
        print("step", step, "samples", step * batch * ranks, flush=True)
"""
# It holds a file where the library of JAX would lie, by which one process drives all.
BARS = """\
import argparse, mmap, os, time

from scalelab.session import load

os.makedirs("jaxlib", exist_ok=True)
with open("jaxlib/libjax.so", "w+b") as file:
    file.truncate(1)
    held = mmap.mmap(file.fileno(), 1)
options = argparse.ArgumentParser()
options.add_argument("--batch", type=int)
batch = options.parse_args().batch
assert os.environ["KERAS_BACKEND"] == "none"
for step in range(1, 15):
    time.sleep(0.004 * batch)
    print(f"{step}/14 [====>] - 1s 9ms/step - loss: {1 / step:.4f}", flush=True)
"""
EXPERIMENT = """\
name: small
program:
- name: lines
  command: python lines.py --batch {local_batch_size}
  metrics: {regex: 'step (?P<step>\\d+) samples (?P<samples>\\d+)'}
- name: bars
  command: python bars.py --batch {global_batch_size}
  launcher: none
  env: {KERAS_BACKEND: none}
  metrics: keras
- name: absent
  command: no-such/bin/python lines.py --batch {local_batch_size}
  metrics: {regex: 'step (?P<step>\\d+)'}
code: {snapshot: [lines.py, bars.py]}
measure: {long_trial: none, warmup_steps: 2, steps: 10, repeats: 1, canary_every: 0}
job: {samples: 10000}
gpus: [1, 2]
local_batch_size: 8
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_programs_are_swept_each_in_its_manner(sweep: Sweep, here: Path) -> None:
    Path("lines.py").write_text(LINES)
    Path("bars.py").write_text(BARS)
    done = sweep(EXPERIMENT)
    assert done.returncode == 1, done  # some trials failed

    measured = {(row["options.program"], row["world_size"]): row for row in rows()}
    assert len(measured) == 5, "the first trial of absent ended its others"
    for (program, size), row in measured.items():
        if program == "absent":
            assert row["outcome"] == "refused", row
            assert "'no-such/bin/python' is no program" in row["reason"]
            continue
        assert row["outcome"] == "completed", row
        assert row["workload"] == "small"
        slowness = 0.002 if program == "lines" else 0.004 * size
        # A line is timed as it is read: a late one shortens the interval after it.
        assert row["step_time_s"] > 0.7 * 8 * slowness
    assert "program lines" in done.stdout
    answer = load("runs/small").recommend()
    compared = " ".join(answer.said("why_not"))
    assert "each with its best batch: lines " in compared

    # Nothing is left to do but for what is new.
    first = len(rows())
    again = sweep(
        EXPERIMENT.replace("- name: absent\n", "- name: added\n").replace(
            "no-such/bin/python lines.py", "python lines.py"
        )
    )
    assert again.returncode == 1, again  # what failed stays in the run
    new = [(row["options.program"], row["outcome"]) for row in rows()[first:]]
    assert new == [("added", "completed")] * 2

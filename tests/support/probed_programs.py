"""Programs that train with PyTorch, each with counters of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_specs import command_spec

from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, AttemptSpec

PROGRAMS = Path(__file__).parents[1] / "launch/command/programs"
STEPS, WARMUP_STEPS = 40, 2
SAMPLES_WITHIN = 0.05


def probed(
    directory: Path,
    program: Path,
    *,
    python: str = "python",
    launcher: str = "none",
    **changes: Any,
) -> AttemptSpec:
    """Return an attempt of one of the programs, which ends by itself."""
    code = directory / "code"
    code.mkdir()
    for file in (program, PROGRAMS / "counted.py"):
        shutil.copy(file, code)
    command = f"{python} {program.name} --batch-size {{local_batch_size}}"
    return command_spec(
        directory,
        command=f"{command} --accumulation {{gradient_accumulation_steps}}",
        launcher=launcher,
        code=code,
        warmup_steps=changes.pop("warmup_steps", WARMUP_STEPS),
        steps=changes.pop("steps", 1000),
        **changes,
    )


def own_counts(spec: AttemptSpec, rank: int = 0) -> dict[str, int]:
    file = Path(spec.directory, "output", f"counted-{rank}.json")
    counts: dict[str, int] = json.loads(file.read_text())
    return counts


def check_steps(spec: AttemptSpec, result: AttemptResult) -> None:
    """Hold what was measured against the program's own counters.

    Samples are counted by the mean of a step, which leaves out the warm-up.
    """
    assert result.outcome is Outcome.COMPLETED, result
    measured, counts = result.measurements, own_counts(spec)
    assert measured["measured_by"] == "inside"
    assert counts["steps"] == STEPS
    samples = sum(
        own_counts(spec, rank)["samples"] for rank in range(spec.trial.world_size)
    )
    assert measured["num_samples"] == pytest.approx(samples, rel=SAMPLES_WITHIN)
    assert measured["validity"] == []

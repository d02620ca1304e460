"""Bars of well-known programs are read while the command that draws them runs.

What they say is in ``tests/reading/logs/test_known_outputs.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_specs import command_spec

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent

OUTPUTS = Path(__file__).parents[2] / "reading" / "samples" / "outputs"
# Writes the sample as it was written: a bar, a pause, the next bar.
REPLAY = """
import sys, time
for piece in open(sys.argv[1], "rb").read().split(b"\\r"):
    sys.stderr.buffer.write(b"\\r" + piece)
    sys.stderr.buffer.flush()
    time.sleep(0.015)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last_step", "accumulation"),
    [("huggingface", 24, 1), ("keras", 24, 1), ("lightning", 10, 2)],
)
def test_bars_of_a_running_command_are_read(
    agent: NodeAgent, tmp_path: Path, name: str, last_step: int, accumulation: int
) -> None:
    preset = PRESETS[name]
    spec = command_spec(
        tmp_path,
        REPLAY,
        command=f"python program.py {OUTPUTS / name}.txt",
        metrics=MetricsSource(regex=preset.regex, evaluation=preset.evaluation),
        accumulation=accumulation,
        warmup_steps=0,
        steps=last_step // 2,
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert 0 < result.measurements["num_steps"] <= last_step
    assert result.measurements["step_time_s"] > 0

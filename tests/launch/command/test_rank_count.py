"""Commands that start ranks by themselves: as many as the trial has devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from probed_programs import PROGRAMS, probed

from scalelab.inputs.layout import Layout
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("launcher", "started", "size"),
    [
        ("per_node", "{gpus_per_node}", 2),
        pytest.param("none", "1", 1, marks=pytest.mark.repetition),
        pytest.param("none", "3", 3, marks=pytest.mark.repetition),
    ],
)
def test_a_group_of_other_ranks_than_the_trial_has_devices_is_refused(
    agent: NodeAgent, tmp_path: Path, launcher: str, started: str, size: int
) -> None:
    spec = probed(
        tmp_path,
        PROGRAMS / "honest" / "ddp.py",
        python=f"torchrun --nproc-per-node {started}",
        launcher=launcher,
        ranks=2,
    )
    result = agent.run(spec, 0, None)
    if size == 2:
        assert result.outcome is Outcome.COMPLETED, result
        assert result.measurements["ranks_witness"] == "inside"
        return
    assert result.outcome is Outcome.REFUSED, result
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    assert result.reason.startswith(
        f"the program's process group has {ranks}, and this trial has 2 devices, so"
    )
    assert "torchrun --nnodes {num_nodes} --nproc-per-node {gpus_per_node}, or" in (
        result.reason
    )


def test_a_rank_may_drive_the_devices_of_its_replica(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = probed(
        tmp_path,
        PROGRAMS / "honest" / "ddp.py",
        python="torchrun --nproc-per-node 1",
        ranks=2,
    )
    trial = replace(spec.trial, layout=Layout(pipeline=2), local_batch_size=8)
    result = agent.run(replace(spec, trial=trial), 0, None)
    assert result.outcome is Outcome.COMPLETED, result

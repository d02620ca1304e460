"""Commands that start their ranks by themselves, and as many as the trial has devices.

Real torchrun, and a starter that tells its ranks the same but needs no torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_specs import GLOBAL_BATCH, TICKER, command_spec

from scalelab.inputs.layout import Layout
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent

STARTER = """
import os, subprocess, sys
size = sys.argv[1]
numbers = [{"LOCAL_RANK": str(rank), "WORLD_SIZE": size} for rank in range(int(size))]
ranks = [
    subprocess.Popen([sys.executable, "program.py"], env={**os.environ, **number})
    for number in numbers
]
sys.exit(max(rank.wait() for rank in ranks))
"""
torchrun = pytest.mark.parametrize(
    ("launcher", "wrong", "right"),
    [
        ("per_node", "--nproc-per-node 1", ""),
        ("none", "", "--nproc-per-node {gpus_per_node}"),
    ],
)


@torchrun
@pytest.mark.slow
def test_torchrun_that_starts_one_rank_on_two_devices_is_refused(
    agent: NodeAgent, tmp_path: Path, launcher: str, wrong: str, right: str
) -> None:
    def run(options: str) -> tuple[Outcome, str]:
        spec = command_spec(
            tmp_path / (options or "plain"),
            TICKER,
            command=f"torchrun {options} program.py",
            launcher=launcher,
            ranks=2,
            steps=200,
        )
        result = agent.run(spec, 0, None)
        return result.outcome, result.reason or ""

    assert run(right) == (Outcome.COMPLETED, "")
    outcome, reason = run(wrong)
    assert outcome is Outcome.REFUSED
    assert reason.startswith(
        "the command started 1 rank (WORLD_SIZE=1), and this trial has 2 "
        "devices, so its row would"
    )
    assert "torchrun --nnodes {num_nodes} --nproc-per-node {gpus_per_node}, or" in (
        reason
    )


@pytest.mark.parametrize(
    ("size", "layout", "outcome"),
    [
        (2, None, Outcome.COMPLETED),
        (3, None, Outcome.REFUSED),
        (1, None, Outcome.REFUSED),
        # One rank for each replica, and a pipeline of two devices within it.
        (1, Layout(pipeline=2), Outcome.COMPLETED),
    ],
)
def test_ranks_are_counted_by_what_they_are_told(
    agent: NodeAgent,
    tmp_path: Path,
    size: int,
    layout: Layout | None,
    outcome: Outcome,
) -> None:
    spec = command_spec(
        tmp_path, TICKER, command=f"python starter.py {size}", launcher="none", ranks=2
    )
    (tmp_path / "code" / "starter.py").write_text(STARTER)
    if layout is not None:
        trial = replace(spec.trial, layout=layout, local_batch_size=GLOBAL_BATCH)
        spec = replace(spec, trial=trial)
    result = agent.run(spec, 0, None)
    assert result.outcome is outcome
    assert (f"started {size} rank" in (result.reason or "")) is (
        outcome is Outcome.REFUSED
    )


def test_a_number_that_the_user_gives_the_command_itself_is_not_judged(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = command_spec(
        tmp_path,
        f"import os, sys\nif len(sys.argv) > 1 and os.fork(): os.wait()\n{TICKER}",
        command="python program.py forks",
        launcher="none",
        env={"WORLD_SIZE": "{num_nodes}", "LOCAL_RANK": "0"},
        ranks=2,
    )
    assert agent.run(spec, 0, None).outcome is Outcome.COMPLETED

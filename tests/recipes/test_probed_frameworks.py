"""Frameworks whose programs need no log: the probe sees their optimizers step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from probed_programs import PROGRAMS, check_steps, own_counts, probed
from swept_recipes import interpreter

from scalelab.launch.gang_agent import NodeAgent

pytestmark = [pytest.mark.slow, pytest.mark.recipes, pytest.mark.timeout(300)]


@pytest.fixture
def agent() -> Iterator[NodeAgent]:
    with NodeAgent("node-0", "cpu", (), entry=None) as agent:
        yield agent


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "passes"), [("fabric", 1), ("accelerated", 4)])
def test_steps_and_samples_are_those_of_the_program(
    agent: NodeAgent, tmp_path: Path, name: str, passes: int, ranks: int
) -> None:
    spec = probed(
        tmp_path,
        PROGRAMS / "honest" / f"{name}.py",
        python=str(interpreter("common")),
        launcher="torchrun",
        ranks=ranks,
        accumulation=passes,
    )
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    measured = result.measurements
    counted = [own_counts(spec, rank)["samples"] for rank in range(ranks)]
    assert sum(counted) == measured["num_samples"]
    assert measured["samples_witness"] == "loader"
    assert measured.get("ranks_witness") == (None if ranks == 1 else "inside")

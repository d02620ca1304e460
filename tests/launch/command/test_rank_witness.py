"""What shows that the ranks of a command have met; and programs that lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_specs import TICKER, command_spec, needs_open_mpi

from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.witness.rank_witness import equal_losses
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptResult

ALONE = """
import os, time
for step in range(1, 100_000):
    time.sleep(0.002)
    print(f"step {step} loss {1 / step:.6f}", flush=True)
"""
# GROUP is the world of the process group that the first ranks join; 0: all of them.
JOINS = (
    """
import os, time
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
joins = int(os.environ["GROUP"]) or size
if os.environ["GROUP"] == "1":
    dist.init_process_group("gloo", rank=0, world_size=1)
elif rank < joins:
    dist.init_process_group("gloo", rank=rank, world_size=joins)
"""
    + ALONE
)
STARTS = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "joins.py"], env={**os.environ, "RANK": rank})
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""
LINES = MetricsSource(regex=(r"step (?P<step>\d+) loss (?P<loss>\S+)",))
SAYS = MetricsSource(regex=(r"step (?P<step>\d+)", r"replicas (?P<world_size>\d+)"))
not_met = "SpecError: {0} ranks started, none met another: this script trains alone in"


def swept(
    agent: NodeAgent, directory: Path, program: str, ranks: int = 2, **changes: object
) -> AttemptResult:
    changes = {"metrics": LINES, **changes}
    spec = command_spec(directory, program, ranks=ranks, **changes)  # type: ignore[arg-type]
    return agent.run(spec, 0, None)


@pytest.mark.parametrize(
    "launcher",
    ["torchrun", "jax", pytest.param("mpirun", marks=pytest.mark.slow)],
)
def test_a_script_for_one_process_is_refused_on_several(
    agent: NodeAgent, tmp_path: Path, launcher: str
) -> None:
    if launcher == "mpirun":
        needs_open_mpi()
    result = swept(agent, tmp_path, ALONE, launcher=launcher, steps=2000)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith(not_met.format(2))
    assert result.reason.endswith(
        "Call torch.distributed.init_process_group, or what your framework has for it; "
        "a script for one process takes gpus: [1] and launcher: none."
    )


def test_one_that_has_ended_before_the_look_is_known_by_its_losses(
    agent: NodeAgent, tmp_path: Path
) -> None:
    short = ALONE.replace("100_000", "60")
    result = swept(agent, tmp_path, short, steps=10**6)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith(not_met.format(2))


@pytest.mark.parametrize(
    ("group", "ranks", "outcome", "said"),
    [
        ("0", 2, Outcome.COMPLETED, ""),
        ("2", 3, Outcome.REFUSED, "SpecError: 3 ranks started, only 2 of them met"),
        ("1", 2, Outcome.REFUSED, not_met.format(2)),
    ],
    ids=["all", "all but one", "each one of its own"],
)
@pytest.mark.slow
def test_all_ranks_must_have_joined_one_group(
    agent: NodeAgent,
    tmp_path: Path,
    group: str,
    ranks: int,
    outcome: Outcome,
    said: str,
) -> None:
    result = swept(
        agent, tmp_path, JOINS, ranks, env={"GROUP": group}, global_batch_size=12
    )
    assert result.outcome is outcome, result
    assert result.reason.startswith(said)
    if outcome is Outcome.COMPLETED:
        assert result.measurements["ranks_witness"] == "store"


def test_ranks_that_meet_at_a_place_of_their_own_are_seen_by_their_sockets(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = agent.run(command_spec(tmp_path, TICKER, ranks=2), 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "sockets"


@pytest.mark.slow
def test_ranks_without_numbers_are_seen_by_their_sockets(
    agent: NodeAgent, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "joins.py").write_text(JOINS)
    result = swept(
        agent,
        tmp_path,
        STARTS,
        launcher="per_node",
        env={"GROUP": "0", "WORLD_SIZE": "2"},
    )
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["ranks_witness"] == "sockets"


@pytest.mark.parametrize(
    ("says", "outcome", "witness"),
    [
        ("", Outcome.COMPLETED, "not_witnessed"),
        ("print('replicas 2')", Outcome.COMPLETED, "framework"),
        ("print('replicas 1')", Outcome.REFUSED, None),
    ],
)
def test_a_process_with_devices_of_its_own_is_believed_if_it_names_them(
    agent: NodeAgent, tmp_path: Path, says: str, outcome: Outcome, witness: str | None
) -> None:
    result = swept(agent, tmp_path, says + ALONE, launcher="none", metrics=SAYS)
    assert result.outcome is outcome, result
    assert result.measurements.get("ranks_witness") == witness
    if witness is None:
        assert result.reason.startswith(
            "SpecError: the program reports world_size=1, and this trial has 2 devices"
        )


def test_losses_that_agree_to_all_digits_are_those_of_ranks_alone(
    tmp_path: Path,
) -> None:
    def logs(*texts: str) -> list[Path]:
        for rank, text in enumerate(texts):
            (tmp_path / f"rank-{rank}.log").write_text(text)
        return [tmp_path / f"rank-{rank}.log" for rank in range(len(texts))]

    def losses(*values: str) -> str:
        return "".join(f"step, loss: {value}\n" for value in values)

    equal = losses("2.3025", "2.1171", "1.9001")
    assert equal_losses(logs(equal, equal + losses("1.8000")))
    assert not equal_losses(logs(equal, losses("2.3025", "2.1171", "1.9002")))
    assert not equal_losses(logs(equal, losses("2.3025", "2.1171")))
    assert not equal_losses(logs(losses(*["0.0000"] * 9), losses(*["0.0000"] * 9)))
    assert not equal_losses(logs(equal))

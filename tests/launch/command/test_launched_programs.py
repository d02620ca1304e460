"""Programs as their launchers' users write them, on real processes of one node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranked_program
from command_specs import command_spec, needs_open_mpi
from waiting import DEADLINE_S, wait_until
from watching import core_ids, is_running

from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.launchers import LAUNCHERS, RecommendedJob
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec, Placement

STEPS = MetricsSource(regex=(r"step (?P<step>\d+) loss (?P<loss>\S+)",))
PROGRAM = Path(ranked_program.__file__).read_text()


def by_launcher(*in_ci: str) -> pytest.MarkDecorator:
    """Parametrize by launcher; those that are not named are left to `make test-all`."""
    left = [
        pytest.param(row.name, marks=pytest.mark.repetition)
        for row in LAUNCHERS
        if row.name not in in_ci
    ]
    return pytest.mark.parametrize("launcher", [*in_ci, *left])


def launched(
    directory: Path, launcher: str, fault: str = "-", ranks: int = 2, **changes: Any
) -> AttemptSpec:
    """Return an attempt of the program under a launcher."""
    if launcher == "mpirun":
        needs_open_mpi()
    return command_spec(
        directory,
        PROGRAM,
        command=f"python program.py {launcher} {fault}",
        ranks=ranks,
        launcher=launcher,
        metrics=STEPS,
        **changes,
    )


def told(spec: AttemptSpec, rank: int) -> dict[str, Any]:
    """Return what a rank found."""
    file = Path(spec.directory, "output", f"rank-{rank}.json")
    wait_until(file.exists, f"{file.name} is there")
    known: dict[str, Any] = json.loads(file.read_text())
    return known


@by_launcher(*(row.name for row in LAUNCHERS))
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.repetition)])
@pytest.mark.slow
def test_ranks_meet_train_and_are_gone(
    agent: NodeAgent, tmp_path: Path, launcher: str, ranks: int
) -> None:
    spec = launched(tmp_path, launcher, ranks=ranks, steps=30)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["num_steps"] >= 30
    found = [told(spec, rank) for rank in range(ranks)]
    assert [each["size"] for each in found] == [ranks] * ranks
    alone = "one_process" if launcher == "none" else None
    witness = "sockets" if ranks > 1 else alone
    assert result.measurements.get("ranks_witness") == witness
    assert not [each for each in found if is_running(each["pid"])]


@by_launcher("torchrun", "mpirun")
@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("raises", Outcome.FAILED, "ValueError"),
        ("killed", Outcome.FAILED, ""),
        ("eats", Outcome.OUT_OF_MEMORY, "MemoryError"),
    ],
)
@pytest.mark.slow
def test_a_rank_that_ends_badly_ends_the_trial(
    agent: NodeAgent,
    tmp_path: Path,
    launcher: str,
    fault: str,
    outcome: Outcome,
    reason: str,
) -> None:
    spec = launched(tmp_path, launcher, fault, steps=10**6)
    result = agent.run(spec, 0, None)
    assert result.outcome is outcome, result
    assert reason in result.reason
    assert not [rank for rank in (0, 1) if is_running(told(spec, rank)["pid"])]


@by_launcher("torchrun", "mpirun", "per_node")
@pytest.mark.slow
def test_a_cancelled_trial_leaves_no_process(
    agent: NodeAgent, tmp_path: Path, start: Callable[..., Any], launcher: str
) -> None:
    spec = launched(tmp_path, launcher, steps=10**6)
    attempt = start(spec)
    pids = [told(spec, rank)["pid"] for rank in (0, 1)]
    agent.cancel(spec.attempt_id, "enough")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert not [pid for pid in pids if is_running(pid)]


@by_launcher("mpirun")  # its ranks wait in a barrier for the one that hangs
@pytest.mark.slow
def test_ranks_that_hang_are_ended(
    agent: NodeAgent, tmp_path: Path, launcher: str
) -> None:
    spec = launched(tmp_path, launcher, "hangs", steps=10**6, stall_floor_s=8.0)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.STALLED, result
    assert not [rank for rank in (0, 1) if is_running(told(spec, rank)["pid"])]


@pytest.mark.parametrize("launcher", ["tf_config", "jax", "mpirun"])
@pytest.mark.slow
def test_trials_side_by_side_share_no_port_and_no_core(
    agent: NodeAgent, tmp_path: Path, start: Callable[..., Any], launcher: str
) -> None:
    specs = [launched(tmp_path / name, launcher, ranks=1, steps=10**6) for name in "ab"]
    for spec, core in zip(specs, core_ids(2), strict=True):
        (share,) = spec.placement.shares
        placement = Placement(shares=(replace(share, device_ids=(core,)),))
        start(replace(spec, placement=placement))
    first, second = (told(spec, 0) for spec in specs)
    assert first["ports"] != second["ports"]
    assert {*first["cores"]}.isdisjoint(second["cores"])


@pytest.mark.slow
def test_parameter_servers_come_first_and_are_ended_with_the_chief(
    agent: NodeAgent, tmp_path: Path
) -> None:
    options = {"parameter_servers": 1}
    spec = launched(tmp_path, "tf_config", steps=30, launcher_options=options)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    found = [told(spec, rank) for rank in (0, 2, 3)]  # the server says nothing
    assert [each["size"] for each in found] == [4] * 3


@pytest.mark.slow
def test_a_program_that_calls_mpi_itself_is_refused_under_its_names_alone(
    agent: NodeAgent, tmp_path: Path
) -> None:
    needs_open_mpi()
    spec = command_spec(
        tmp_path,
        PROGRAM,
        command="python program.py MPI_Init -",
        ranks=2,
        launcher="mpi",
        metrics=STEPS,
        steps=10**6,
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.endswith("Use launcher: mpirun.")


def first_free_port(count: int) -> int:
    """Return the first of so many free ports that no outgoing connection is given."""
    first_given = int(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    )
    for first in range(first_given - count, 1024, -count):
        with suppress(OSError), ExitStack() as sockets:
            for port in range(first, first + count):
                each = sockets.enter_context(socket.socket())
                each.bind(("127.0.0.1", port))
            return first
    raise AssertionError(f"no {count} ports in a row are free")


@pytest.mark.parametrize("launcher", ["per_node", "mpi", "mpirun", "tf_config", "jax"])
@pytest.mark.slow
def test_the_lines_of_a_job_start_the_same_ranks(tmp_path: Path, launcher: str) -> None:
    if launcher == "mpirun":
        needs_open_mpi()
    (tmp_path / "program.py").write_text(PROGRAM)
    options = {"parameter_servers": 1} if launcher == "tf_config" else {}
    row = LAUNCHERS[launcher].with_options(options)
    job = RecommendedJob(
        argv=("python3", "program.py", launcher, "short"),
        num_nodes=1,
        devices_per_node=2,
        on_each_node="",
        on_each_device="",
        first_host="127.0.0.1",
        hosts="127.0.0.1",
        port=str(first_free_port(5)),
    )
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    many = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
    said = subprocess.run(
        ["bash"],
        input="\n".join(row.job_lines(job)),
        cwd=tmp_path,
        env={**os.environ, "SCALELAB_TRIAL_DIR": str(tmp_path), **root, **many},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "step 20 " in said.stdout
    sizes = [
        json.loads(each.read_text())["size"] for each in tmp_path.glob("rank-*.json")
    ]
    # A parameter server says nothing, and no end.
    assert sizes == ([4] * 3 if options else [2] * 2)

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import (
    Allocation,
    Measurement,
    Scalar,
    Trial,
    TrialKind,
)
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptResult, AttemptSpec, NodeShare, Placement

ENTRY = "stand_in:act"
STAND_IN = Path(__file__).parent
DEADLINE_S = 60.0
NUMBERS = count(1)

MakeSpec = Callable[..., AttemptSpec]
Start = Callable[..., Future[AttemptResult]]


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """A zombie, whose parent may be a container's careless init, is not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def read_pid(spec: AttemptSpec, name: str) -> int:
    file = Path(spec.directory) / f"{name}.pid"
    wait_until(file.exists, f"{file.name} is there")
    return int(file.read_text())


def core_ids(number: int) -> tuple[str, ...]:
    """Core numbers we may use, over again where there are too few."""
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(str(allowed[i % len(allowed)]) for i in range(number))


@pytest.fixture(scope="session")
def agent() -> Iterator[NodeAgent]:
    with NodeAgent(
        "node-0", "cpu", (), entry=ENTRY, search_path=(str(STAND_IN),)
    ) as agent:
        yield agent


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    def make(
        act: str,
        *,
        ranks: int | tuple[int, ...] = 2,
        workload: str = "stand_in",
        timeout_s: float | None = None,
        device_ids: tuple[str, ...] | None = None,
        code: str | None = None,
        directory: Path | None = None,
        device_type: str = "cpu",
        threads_per_rank: int = 1,
        stall_factor: float = 20.0,
        stall_floor_s: float = 30.0,
        **options: Scalar,
    ) -> AttemptSpec:
        shares = (ranks,) if isinstance(ranks, int) else ranks
        ids = iter(device_ids or core_ids(sum(shares)))
        # An agent may outlive a test, and remembers whom it was told to cancel.
        number = next(NUMBERS)
        return AttemptSpec(
            run="test",
            trial=Trial(
                kind=TrialKind.THROUGHPUT,
                workload=workload,
                allocation=Allocation(devices_per_node=shares),
                local_batch_size=4,
                options={"act": act, **options},
                measurement=Measurement(timeout_s=timeout_s),
            ),
            program=WorkloadProgram(name=workload, code_directory=code),
            number=number,
            directory=str(directory or tmp_path / f"attempt-{number}"),
            placement=Placement(
                shares=tuple(
                    NodeShare(
                        node=f"node-{index}",
                        device_ids=tuple(next(ids) for _ in range(devices)),
                    )
                    for index, devices in enumerate(shares)
                )
            ),
            device_type=device_type,
            threads_per_rank=threads_per_rank,
            stall_factor=stall_factor,
            stall_floor_s=stall_floor_s,
        )

    return make


@pytest.fixture
def start(agent: NodeAgent) -> Iterator[Start]:
    """Run attempts in threads, as a Dask worker does."""
    with ThreadPoolExecutor() as threads:
        started: list[tuple[NodeAgent, str]] = []

        def submit(
            spec: AttemptSpec,
            node_rank: int = 0,
            rendezvous: str | None = None,
            on: NodeAgent | None = None,
        ) -> Future[AttemptResult]:
            started.append((on or agent, spec.attempt_id))
            return threads.submit((on or agent).run, spec, node_rank, rendezvous)

        yield submit
        for node, attempt_id in started:
            node.cancel(attempt_id, "the test is over")

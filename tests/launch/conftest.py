from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from watching import ENTRY, STAND_IN, core_ids

from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import (
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)

NUMBERS = count(1)

MakeSpec = Callable[..., AttemptSpec]
Start = Callable[..., Future[AttemptResult]]


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
        stall_floor_s: float | None = 30.0,
        start_up_timeout_s: float | None = None,
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
                measurement=Measurement(
                    timeout_s=timeout_s,
                    stall_timeout_s=stall_floor_s,
                    start_up_timeout_s=start_up_timeout_s,
                ),
            ),
            program=WorkloadProgram(name=workload, code_directory=code),
            known=KnownWorkload.named(workload),
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

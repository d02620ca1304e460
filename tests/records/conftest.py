"""A run, and attempts to put into it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import LearningRate, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, AttemptSpec, NodeShare, Placement
from scalelab.records.store import RunStore

SpecMaker = Callable[..., AttemptSpec]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(
        tmp_path / "a run", experiment_text="name: a\n", fingerprint={"model": "small"}
    )


@pytest.fixture
def make_spec(store: RunStore) -> SpecMaker:
    """Make the next attempt of the trial with this seed."""

    def make(
        seed: int = 0, devices: tuple[int, ...] = (2,), **fields: Any
    ) -> AttemptSpec:
        trial = Trial(
            kind=TrialKind.THROUGHPUT,
            workload="digits_mlp",
            allocation=Allocation(devices_per_node=devices),
            local_batch_size=32,
            learning_rate=LearningRate(
                base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.2
            ),
            seed=seed,
            **fields,
        )
        shares = tuple(
            NodeShare(node=f"n{index}", device_ids=tuple(map(str, range(count))))
            for index, count in enumerate(devices)
        )
        number = store.next_attempt_number(trial.trial_id)
        return AttemptSpec(
            run=store.name,
            trial=trial,
            program=WorkloadProgram(name="digits_mlp"),
            number=number,
            directory=str(store.attempt_directory(trial.trial_id, number)),
            placement=Placement(shares=shares),
            device_type="cpu",
        )

    return make


@pytest.fixture
def measured() -> AttemptResult:
    return AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={
            "device_name": "a processor",
            "step_time_s": 0.0125,
            "throughput_samples_per_s": 5120.0,
            "num_steps": 50,
            "reached_target": False,
            "started_at": "2026-11-20T10:00:00+00:00",
            "ended_at": "2026-11-20T12:00:01.5+02:00",
            "hosts": ["h0"],
            "versions": '{"torch":"2"}',
        },
    )


@pytest.fixture
def lost() -> AttemptResult:
    return AttemptResult(outcome=Outcome.NODE_FAIL, reason="The node vanished.")

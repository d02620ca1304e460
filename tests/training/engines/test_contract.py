"""The contract of every engine: what it is called for, and that a trial goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from gang import HERE, attempt, on, run_attempt, stream, throughput_trial

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import STRATEGIES
from scalelab.training.engines.paths import engine_path

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)
STOP_AT = 17


def trial_of(workload: str, parallelism: str = "ddp", **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "parallelism": parallelism,
        "measurement": Measurement(max_samples=2000, evaluate_every_samples=500),
    }
    return on(throughput_trial(workload), 2, **(fields | changes))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trial of 32 steps that an engine trains.

    ``whole`` is the trial that is not stopped, None: the same; ``told_by`` is what the
    last evaluation says of the weights, None: no two runs are alike.
    """

    trial: Trial
    whole: Trial | None = None
    told_by: str | None = "weights_hash"
    parameters: dict[str, Any] = field(default_factory=dict)


NORMED: dict[str, Any] = {"dropout": 0.3, "batch_norm": True, "hidden_sizes": [16]}
HASHED = "own_workloads:HashedDigits"
TWO_RANKS = trial_of(HASHED)
LOCAL = trial_of(
    HASHED, "local_sgd", options={"averaging_period": 7, "synchronous_steps": 8}
)
CASES = {
    "ddp": Case(trial=TWO_RANKS, parameters=NORMED),
    "ddp on one rank": Case(
        trial=on(
            TWO_RANKS,
            1,
            measurement=Measurement(max_samples=1000, evaluate_every_samples=250),
        ),
        parameters=NORMED,
    ),
    # Small buckets are filled otherwise in the first pass of each process.
    "powersgd": Case(
        trial=trial_of(
            HASHED,
            precision="fp16",
            options={
                "gradient_compression": "powersgd",
                "powersgd_rank": 2,
                "bucket_cap_mb": 0.01,
            },
        ),
        parameters={"dropout": 0.3, "hidden_sizes": [64, 64]},
    ),
    "fsdp": Case(trial=trial_of(HASHED, "fsdp", precision="fp16"), parameters=NORMED),
    # Nor do evaluations change what is trained.
    "local_sgd": Case(
        trial=LOCAL,
        whole=replace(LOCAL, measurement=Measurement(max_samples=2000)),
        parameters=NORMED,
    ),
    "parameter_server": Case(
        trial=trial_of(
            HASHED,
            "parameter_server",
            kind=TrialKind.END_TO_END,
            options={"rule": "adag", "communication_window": 4, "num_servers": 2},
        ),
        told_by=None,
    ),
    # At the first scale of fp16 gradients overflow: all ranks must skip the same steps.
    "pipeline": Case(
        trial=trial_of(
            "digits_mlp",
            "pipeline",
            precision="fp16",
            options={"split_size": 8},
            measurement=Measurement(max_samples=1000, evaluate_every_samples=250),
        ),
        told_by="val_loss",
        parameters={**NORMED, "hidden_sizes": [16, 16]},
    ),
}


@pytest.mark.parametrize("name", STRATEGIES.names)
def test_an_engine_takes_steps_and_keeps_what_it_needs_to_go_on(name: str) -> None:
    engine = imported(engine_path(name))
    assert {"begin", "step", "evaluate", "state", "restore"} <= set(dir(engine))


def test_every_strategy_has_a_case() -> None:
    assert {case.trial.parallelism for case in CASES.values()} == set(STRATEGIES.names)


# The engine of each other strategy holds this contract in `make test-all`.
MARKS: dict[str, Sequence[pytest.MarkDecorator]] = {
    "ddp": (),
    "fsdp": [pytest.mark.slow],
    "parameter_server": [pytest.mark.slow],
}
LEFT_TO_ALL = [pytest.mark.slow, pytest.mark.repetition]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=MARKS.get(name, LEFT_TO_ALL))
        for name, case in CASES.items()
    ],
)
class TestEngineContract:
    def ended(self, place: Path, case: Case, trial: Trial, stop_at: int | None) -> Any:
        parameters = {**case.parameters, "code_directory": HERE}
        result = run_attempt(attempt(place, trial, **parameters), stop_at_step=stop_at)
        return result, stream(place, "step"), stream(place, "evaluation")

    def test_a_stopped_trial_goes_on(self, tmp_path: Path, case: Case) -> None:
        halves = tmp_path / "halves"
        stopped, before, _ = self.ended(halves / "001", case, case.trial, STOP_AT)
        resumed, after, end = self.ended(halves / "002", case, case.trial, None)
        assert stopped.outcome is Outcome.PREEMPTED
        assert stopped.reason.startswith("Ended by SIGTERM at step ")
        assert resumed.outcome is Outcome.COMPLETED
        first = before[-1]["step"]
        assert [row["step"] for row in after] == list(range(first + 1, 33))
        # The first step after a restart is slow, and not measured.
        assert resumed.measurements["num_steps"] == len(after) - 1
        assert resumed.measurements["num_samples"] == 32 * case.trial.global_batch_size
        if case.told_by is None:
            # Rank 0 has no loss before its first own step; a new network has ln 10.
            assert next(row["loss"] for row in after if "loss" in row) < 2.2
            return
        place, trial = tmp_path / "whole" / "001", case.whole or case.trial
        _, expected, evaluations = self.ended(place, case, trial, None)
        losses = [row["loss"] for row in expected]
        assert [row["loss"] for row in after] == losses[first:]
        assert end[-1][case.told_by] == evaluations[-1][case.told_by]

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gang import HERE, on, run_in_contexts, run_trial, stream, throughput_trial
from torch import nn

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.target import MetricMode, Target
from scalelab.training.engines.local_sgd import average

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)
VAL_ACC = Target(metric="val_acc", mode=MetricMode.MAX, value=0.95)


def local_trial(period: int, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "parallelism": "local_sgd",
        "options": {"averaging_period": period},
        "measurement": Measurement(max_samples=2000, evaluate_every_samples=500),
    }
    return on(throughput_trial("own_workloads:HashedDigits"), 2, **(fields | changes))


def evaluations(directory: Path, trial: Trial, **parameters: Any) -> list[Any]:
    """Run a trial to its end; return its evaluations."""
    run_trial(directory, trial, code_directory=HERE, **parameters)
    return stream(directory, "evaluation")


def means(context: Any) -> Any:
    model = nn.BatchNorm1d(1)
    with torch.no_grad():
        model.weight.fill_(1.0 + context.rank)
        model.running_mean.fill_(10.0 * context.rank)
        model.num_batches_tracked.fill_(7 + context.rank)
        double = torch.full((2,), 4.0 * context.rank, dtype=torch.float64)
    average([*model.parameters(), *model.buffers(), double])
    return [
        *(model.weight.item(), model.running_mean.item(), double.tolist()),
        model.num_batches_tracked.item(),
    ]


def test_floating_tensors_of_every_type_are_averaged(tmp_path: Path) -> None:
    first, second = run_in_contexts(2, means, directory=tmp_path)
    assert first == [1.5, 5.0, [2.0, 2.0], 7]
    assert second == [1.5, 5.0, [2.0, 2.0], 8]


@pytest.mark.slow
def test_an_averaging_comes_after_a_period_of_the_slowest(tmp_path: Path) -> None:
    factor = 3
    trial = on(
        throughput_trial("own_workloads:SleepyPasses"),
        2,
        parallelism="local_sgd",
        options={"averaging_period": 4, "slow_rank_factor": factor},
        measurement=Measurement(warmup_steps=4, steps=8, relative_precision=1e-9),
    )
    measured = run_trial(tmp_path, trial, code_directory=HERE, pass_s=0.2)
    # The ranks compute a step in 1 and in 3 units: 2 in the mean, and 3 the slower.
    by_arithmetic = measured["compute_s"] * 2 * factor / (1 + factor)
    assert measured["step_time_s"] == pytest.approx(by_arithmetic, rel=0.1)


@pytest.mark.slow
def test_averaging_after_every_step_is_synchronous_training(tmp_path: Path) -> None:
    # Steps of SGD with momentum are linear in the gradients.
    local = evaluations(tmp_path / "local", local_trial(1), hidden_sizes=[16])
    ddp = replace(local_trial(1), parallelism="ddp", options={})
    synchronous = evaluations(tmp_path / "ddp", ddp, hidden_sizes=[16])
    assert [row["val_loss"] for row in local] == pytest.approx(
        [row["val_loss"] for row in synchronous], rel=1e-5
    )


@pytest.mark.slow
def test_synchronous_steps_come_first(tmp_path: Path) -> None:
    options = {"averaging_period": 4, "synchronous_steps": 16}
    evaluations(tmp_path / "post", local_trial(4, options=options))
    ddp = replace(local_trial(4), parallelism="ddp", options={})
    evaluations(tmp_path / "ddp", ddp)
    losses = {
        name: [row["loss"] for row in stream(tmp_path / name, "step")]
        for name in ("post", "ddp")
    }
    assert losses["post"][:17] == losses["ddp"][:17]
    assert losses["post"][17:] != losses["ddp"][17:]
    waits = [row["exposed_sync_s"] > 0 for row in stream(tmp_path / "post", "step")]
    assert waits[:28] == [True] * 16 + [False, False, False, True] * 3


@pytest.mark.slow
def test_measured_steps_are_whole_periods(tmp_path: Path) -> None:
    trial = local_trial(
        8,
        kind=TrialKind.THROUGHPUT,
        options={"averaging_period": 8, "synchronous_steps": 1000},
        measurement=Measurement(warmup_steps=3, steps=50, relative_precision=1e-9),
    )
    measured = run_trial(tmp_path, trial, code_directory=HERE)
    # 56, or whole periods more until the step times have settled.
    num_steps = measured["num_steps"]
    assert num_steps >= 56
    assert num_steps % 8 == 0
    steps = stream(tmp_path, "step")[-num_steps:]
    num_averaged = np.count_nonzero([row["exposed_sync_s"] for row in steps])
    assert num_averaged == num_steps // 8
    assert 0 < measured["exposed_sync_s"] < measured["step_time_s"]
    assert measured["step_time_lo_s"] < measured["step_time_s"]


@pytest.mark.slow
@pytest.mark.repetition
def test_digits_converge_as_with_synchronous_steps(tmp_path: Path) -> None:
    # Stich 2019, corollary 2.3: after T steps of K ranks with batches of b, periods up
    # to about sqrt(T / (K b)) cost no more than a constant. Here T = 256 and K b = 64.
    measurement = Measurement(
        max_samples=256 * 64, evaluate_every_samples=640, target=VAL_ACC
    )
    local = local_trial(2, measurement=measurement)
    measured = run_trial(tmp_path / "local", local, code_directory=HERE)
    ddp = replace(local, parallelism="ddp", options={})
    synchronous = run_trial(tmp_path / "ddp", ddp, code_directory=HERE)
    assert measured["samples_to_target"] < 2 * synchronous["samples_to_target"]
    assert "gradient_noise_scale" not in measured
    assert synchronous["gradient_noise_scale"] > 0

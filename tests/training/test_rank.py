"""Whole trials, in real ranks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import (
    HERE,
    RankFailure,
    attempt,
    on,
    run_attempt,
    run_in_gang,
    run_trial,
    stream,
    throughput_trial,
)

from scalelab.experiment.program import program_from_json
from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.records.attempt import AttemptSpec
from scalelab.records.observations import row
from scalelab.training.rank import run_rank

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)
VAL_ACC = Target(metric="val_acc", mode=MetricMode.MAX, value=0.95)


def convergence_trial(
    workload: str = "digits_mlp", **changes: int | Measurement | str
) -> Trial:
    fields = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "measurement": Measurement(
            max_samples=2000, evaluate_every_samples=500, target=None
        ),
    }
    return throughput_trial(workload, **(fields | changes))


def threads_of_rank(who: Any, rendezvous: Any, spec: Any) -> int:
    run_rank(spec, who, rendezvous, lambda step: None)
    return torch.get_num_threads()


@pytest.mark.slow
def test_a_rank_computes_with_the_threads_it_was_given(tmp_path: Path) -> None:
    spec = replace(attempt(tmp_path, throughput_trial("emulated")), threads_per_rank=3)
    assert run_in_gang(1, threads_of_rank, spec, directory=tmp_path) == [3]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_throughput_trial_measures_every_column_it_can_know(
    tmp_path: Path, world_size: int
) -> None:
    trial = on(throughput_trial("digits_mlp"), world_size)
    spec = attempt(tmp_path, trial)
    result = run_attempt(spec)
    measured = result.measurements
    assert result.outcome is Outcome.COMPLETED
    # More on a busy machine, where step times have not settled.
    assert measured["num_steps"] >= 20
    assert measured["num_samples"] >= 22 * trial.global_batch_size
    assert measured["num_parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    assert measured["gradient_bytes"] == 4 * measured["num_parameters"]
    assert measured["planned_steps"] == 22
    assert measured["optimizer"] == "SGD(momentum=0.9)"
    assert measured["schedule"] == "constant"
    assert measured["dataset"].startswith("digits ")
    assert json.loads(measured["versions"])["torch"]
    assert measured["step_time_lo_s"] < measured["step_time_s"]
    assert measured["step_time_s"] < measured["step_time_hi_s"]
    throughput = measured["throughput_samples_per_s"]
    assert throughput * measured["step_time_s"] == pytest.approx(
        trial.global_batch_size
    )
    assert (measured["exposed_sync_s"] > 0) == (world_size > 1)
    # On CPU nothing plays the part of a device's memory; one gradient has no noise.
    assert "gpu_memory_peak_bytes" not in measured
    assert "gpu_memory_bytes" not in measured
    assert "gradient_noise_scale" not in measured
    assert "normalization_batch_size" not in measured
    assert row(spec, result)["num_steps"] == measured["num_steps"]


@pytest.mark.slow
def test_stream_has_every_step_and_its_phases_add_up(tmp_path: Path) -> None:
    measured = run_trial(tmp_path, throughput_trial("digits_mlp"))
    steps = stream(tmp_path, "step")
    numbers = range(1, len(steps) + 1)
    # Two steps of warm-up, or more on a busy machine, where steps settle later.
    assert 20 <= measured["num_steps"] <= len(steps) - 2
    assert [step["step"] for step in steps] == [*numbers]
    assert [step["samples"] for step in steps] == [16 * number for number in numbers]
    for step in steps:
        phases = ("data_wait_s", "compute_s", "exposed_sync_s", "optimizer_s")
        assert sum(step[phase] for phase in phases) == pytest.approx(
            step["step_time_s"]
        )
    assert steps[-1]["t"] == pytest.approx(sum(step["step_time_s"] for step in steps))


@pytest.mark.slow
def test_precise_measurement_ends_before_the_step_limit(tmp_path: Path) -> None:
    measurement = Measurement(warmup_steps=1, steps=400, relative_precision=0.5)
    trial = throughput_trial("emulated", local_batch_size=1, measurement=measurement)
    measured = run_trial(tmp_path, trial, fixed_time_s=0.02, sample_time_s=0.0)
    assert 20 <= measured["num_steps"] < 400


@pytest.mark.slow
def test_target_reached_counts_training_time_only(tmp_path: Path) -> None:
    measurement = Measurement(
        max_samples=40_000, evaluate_every_samples=1000, target=VAL_ACC
    )
    trial = on(convergence_trial(measurement=measurement), 2)
    measured = run_trial(tmp_path, trial)
    evaluations = stream(tmp_path, "evaluation")
    assert measured["reached_target"] is True
    assert measured["final_metric"] >= 0.95
    assert measured["samples_to_target"] == 64 * measured["steps_to_target"]
    assert measured["samples_to_target"] == evaluations[-1]["samples"]
    assert all(row["val_acc"] < 0.95 for row in evaluations[:-1])
    assert measured["time_to_target_s"] == pytest.approx(evaluations[-1]["t"])
    assert measured["evaluation_s"] == pytest.approx(
        sum(row["evaluation_s"] for row in evaluations)
    )
    assert measured["gradient_noise_scale"] > 0


def test_unreached_target_is_an_outcome_with_a_reason(tmp_path: Path) -> None:
    target = replace(VAL_ACC, value=0.9999)
    measurement = Measurement(max_samples=640, target=target)
    result = run_attempt(attempt(tmp_path, convergence_trial(measurement=measurement)))
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert result.reason.startswith("val_acc >= 0.9999 was not reached after 640")
    assert result.measurements["reached_target"] is False
    assert "time_to_target_s" not in result.measurements
    assert len(stream(tmp_path, "evaluation")) == 1


@pytest.mark.slow
def test_a_pruned_trial_ends_early_with_all_it_measured(tmp_path: Path) -> None:
    measurement = Measurement(max_samples=10_000_000, target=VAL_ACC)
    trial = on(convergence_trial(measurement=measurement), 2)
    spec = attempt(tmp_path, trial)
    result = run_attempt(spec, stop_at_step=40, prunes=True)
    assert (result.outcome, result.reason) == (Outcome.PRUNED, "Enough was seen.")
    measured = result.measurements
    steps = stream(tmp_path, "step")
    assert measured["num_samples"] == steps[-1]["samples"] >= 40 * 64
    assert measured["reached_target"] is False
    assert measured["dataset"].startswith("digits")
    assert measured["step_time_s"] > 0
    assert spec.files.checkpoint.is_dir()


def test_diverged_training_ends_at_once(tmp_path: Path) -> None:
    trial = convergence_trial("own_workloads:Diverging")
    result = run_attempt(attempt(tmp_path, trial, code_directory=HERE))
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert "no longer finite after 32 samples" in result.reason


@pytest.mark.slow
def test_convergence_does_not_depend_on_the_number_of_devices(tmp_path: Path) -> None:
    one = convergence_trial(gradient_accumulation_steps=2)
    two = on(convergence_trial(), 2)
    measured = [
        run_trial(tmp_path / str(trial.world_size), trial, hidden_sizes=[16])
        for trial in (one, two)
    ]
    losses = [
        [row["val_loss"] for row in stream(tmp_path / name, "evaluation")]
        for name in ("1", "2")
    ]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    scales = [columns["gradient_noise_scale"] for columns in measured]
    assert scales[0] == pytest.approx(scales[1], rel=1e-2)


@pytest.mark.slow
def test_a_trial_whose_time_is_up_goes_on_in_another_attempt(tmp_path: Path) -> None:
    measurement = Measurement(max_samples=100_000, evaluate_every_samples=1600)
    trial = convergence_trial(measurement=measurement)

    def spec(number: str) -> AttemptSpec:
        return attempt(tmp_path / number, trial, hidden_sizes=[8])

    rows: list[dict[str, Any]] = []
    for stop_after_s in (1.0, 5.0, 25.0):  # a slow start may take all of the first
        cut_off = run_attempt(replace(spec("001"), stop_after_s=stop_after_s).arrived())
        assert cut_off.outcome is Outcome.PREEMPTED
        rows = stream(tmp_path / "001", "step")
        if rows:
            break
    reached = rows[-1]["step"]
    assert cut_off.reason.startswith(f"Ended at step {reached}: ")
    whole = run_attempt(spec("002"))
    assert whole.outcome is Outcome.COMPLETED
    steps = [row["step"] for row in stream(tmp_path / "002", "step")]
    assert steps == list(range(reached + 1, 100_000 // 32 + 1))


def test_a_throughput_trial_has_no_checkpoint_and_ends_when_it_ends(
    tmp_path: Path,
) -> None:
    spec = attempt(tmp_path, throughput_trial("digits_mlp"))
    result = run_attempt(replace(spec, stop_after_s=0.0).arrived())
    assert result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    "precision", [pytest.param("bf16", marks=pytest.mark.slow), "fp16"]
)
def test_lower_precision_trains(tmp_path: Path, precision: str) -> None:
    measurement = Measurement(
        max_samples=40_000, evaluate_every_samples=2000, target=VAL_ACC
    )
    trial = convergence_trial(
        measurement=measurement, precision=precision, gradient_accumulation_steps=2
    )
    assert run_trial(tmp_path, trial)["reached_target"]


def test_map_style_data_come_through_loader_workers(tmp_path: Path) -> None:
    trial = throughput_trial("own_workloads:MapStyle", local_batch_size=8)
    losses = []
    for loader_workers in (0, 2):
        directory = tmp_path / f"workers-{loader_workers}"
        run_trial(directory, trial, code_directory=HERE, loader_workers=loader_workers)
        losses.append([row["loss"] for row in stream(directory, "step")])
    # One may have gone on until its step times settled.
    one, other = (of_run[:22] for of_run in losses)
    assert one == other
    assert len(one) == 22
    assert one[-1] < one[0]


def test_batch_beyond_the_memory_limit_is_out_of_memory(tmp_path: Path) -> None:
    small = throughput_trial("own_workloads:Wide", local_batch_size=64)
    measured = run_trial(
        tmp_path / "small", small, code_directory=HERE, memory_limit_bytes=400_000_000
    )
    assert 0 < measured["gpu_memory_peak_bytes"] < 400_000_000
    big = replace(small, local_batch_size=40_000)
    with pytest.raises(
        RankFailure, match=r"OutOfMemoryError: memory_limit_bytes=400000000 reached"
    ):
        run_trial(
            tmp_path / "big", big, code_directory=HERE, memory_limit_bytes=400_000_000
        )


@pytest.mark.parametrize(
    ("changes", "parameters", "message"),
    [
        (
            {"precision": "fp8"},
            {},
            r"precision='fp8' does not exist. Choose from: bf16",
        ),
        (
            {"parallelism": "magic"},
            {},
            r"parallelism='magic' is not known\. Valid: ddp, fsdp, local_sgd, par",
        ),
        ({}, {"width": 3}, r"width=3 is no parameter of workload 'digits_mlp'. It tak"),
        ({}, {"hidden_sizes": [0]}, r"hidden_sizes=\[0\] must be whole numbers"),
        ({}, {"loader_workers": -1}, r"loader_workers=-1 must be a whole number, at l"),
        (
            {
                "kind": TrialKind.CONVERGENCE,
                "local_batch_size": 2000,
                "measurement": Measurement(max_samples=9000),
            },
            {},
            r"global_batch_size=2000 is larger than the 1437 training samples",
        ),
        (
            {
                "kind": TrialKind.CONVERGENCE,
                "measurement": Measurement(
                    max_samples=64, target=replace(VAL_ACC, metric="val_f1")
                ),
            },
            {},
            r"target metric 'val_f1' is not measured .* measures: val_acc, val_loss\.",
        ),
    ],
)
def test_wrong_trial_is_refused_with_the_rule(
    tmp_path: Path, changes: dict[str, Any], parameters: dict[str, Any], message: str
) -> None:
    spec = attempt(tmp_path, throughput_trial("digits_mlp", **changes), **parameters)
    with pytest.raises(RankFailure, match=message):
        run_attempt(spec)


def test_convergence_needs_held_out_data(tmp_path: Path) -> None:
    trial = convergence_trial("own_workloads:MapStyle", local_batch_size=8)
    with pytest.raises(RankFailure, match=r"own_workloads:MapStyle has no held-out"):
        run_trial(tmp_path, trial, code_directory=HERE)


def test_command_is_not_for_ranks(tmp_path: Path) -> None:
    values = {
        "kind": "command",
        "command": "python train.py",
        "launcher": "none",
        "env": {},
        "metrics": {"jsonl": None, "regex": []},
        "code_directory": ".",
    }
    spec = attempt(tmp_path, throughput_trial("command"))
    spec = replace(spec, program=program_from_json(values))
    with pytest.raises(RankFailure, match="'command' is a command, and ranks run work"):
        run_attempt(spec)


def test_larger_batch_than_the_data_still_measures_throughput(tmp_path: Path) -> None:
    trial = throughput_trial(
        "digits_mlp",
        local_batch_size=2000,
        measurement=Measurement(warmup_steps=1, steps=4),
    )
    assert run_trial(tmp_path, trial)["num_samples"] == 10_000

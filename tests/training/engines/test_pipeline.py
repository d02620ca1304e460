from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import (
    HERE,
    RankFailure,
    on,
    run_in_contexts,
    run_trial,
    stream,
    throughput_trial,
)
from torch import nn
from virtual_pipeline import VirtualPipeline

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.training.engines.pipeline import input_of_model, of_output
from scalelab.training.workloads.digits_mlp import DigitsMlp

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)


def piped_trial(num_devices: int, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "parallelism": "pipeline",
        "options": {"split_size": 8},
        "measurement": Measurement(max_samples=1000, evaluate_every_samples=500),
    }
    return on(throughput_trial("digits_mlp"), num_devices, **(fields | changes))


def learned(directory: Path, trial: Trial, **parameters: Any) -> tuple[Any, Any]:
    """Run a trial to its end; return its losses, and those of its evaluations."""
    run_trial(directory, trial, **parameters)
    return (
        [row["loss"] for row in stream(directory, "step")],
        [row["val_loss"] for row in stream(directory, "evaluation")],
    )


@pytest.mark.slow
def test_it_learns_what_one_process_learns(tmp_path: Path) -> None:
    # Batch norm sees a micro-batch wherever it is computed.
    parameters: dict[str, Any] = {"hidden_sizes": [16, 12, 8], "batch_norm": True}
    alone = piped_trial(
        1,
        parallelism="ddp",
        options={},
        local_batch_size=8,
        gradient_accumulation_steps=4,
    )
    losses, evaluated = learned(tmp_path / "alone", alone, **parameters)
    for schedule, stages, passes in (("gpipe", 2, 1), ("1f1b", 3, 1), ("1f1b", 2, 2)):
        options = {"split_size": 8, "schedule": schedule}
        trial = piped_trial(
            stages,
            options=options,
            local_batch_size=32 // passes,
            gradient_accumulation_steps=passes,
        )
        directory = tmp_path / f"{schedule}-{stages}-{passes}"
        found = learned(directory, trial, **parameters)
        assert found[0] == pytest.approx(losses, rel=1e-5)
        assert found[1] == pytest.approx(evaluated, rel=1e-5)


@pytest.mark.repetition
@pytest.mark.slow
def test_several_pipelines_learn_what_data_parallel_ranks_learn(tmp_path: Path) -> None:
    options = {"split_size": 8, "schedule": "1f1b", "stages": 2}
    trial = piped_trial(4, options=options, local_batch_size=16)
    assert trial.data_parallel_size == 2
    ranks = piped_trial(
        2,
        parallelism="ddp",
        options={},
        local_batch_size=8,
        gradient_accumulation_steps=2,
    )
    parameters = {"hidden_sizes": [16, 12]}
    losses, evaluated = learned(tmp_path / "ddp", ranks, **parameters)
    found = learned(tmp_path / "pipelines", trial, **parameters)
    assert found[0] == pytest.approx(losses, rel=1e-5)
    assert found[1] == pytest.approx(evaluated, rel=1e-5)


@pytest.mark.repetition
@pytest.mark.slow
def test_an_embedding_on_two_stages_stays_one(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "data": HERE}
    fields: dict[str, Any] = {
        "workload": "transformer_lm",
        "learning_rate": replace(RATE, value=0.02),
        "kind": TrialKind.THROUGHPUT,
        "measurement": Measurement(warmup_steps=1, steps=5, relative_precision=1e-9),
    }
    alone = piped_trial(
        1,
        parallelism="ddp",
        options={},
        local_batch_size=8,
        gradient_accumulation_steps=4,
        **fields,
    )
    expected, _ = learned(tmp_path / "alone", alone, **parameters)
    found, _ = learned(tmp_path / "piped", piped_trial(2, **fields), **parameters)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[-1] < found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "times_s"), [("gpipe", (0.04, 0.04)), ("1f1b", (0.02, 0.06))]
)
def test_stages_idle_as_long_as_in_virtual_time(
    tmp_path: Path, schedule: str, times_s: tuple[float, ...]
) -> None:
    trial = piped_trial(
        2,
        workload="own_workloads:SleepyDigits",
        kind=TrialKind.THROUGHPUT,
        options={"split_size": 8, "schedule": schedule},
        measurement=Measurement(warmup_steps=1, steps=4, relative_precision=1e-9),
    )
    measured = run_trial(
        tmp_path, trial, code_directory=HERE, stage_times_s=list(times_s)
    )
    expected = VirtualPipeline(forward_s=times_s, backward_s=times_s)
    # A busy machine computes and sends more slowly, which is idle time of the others.
    assert measured["bubble_share"] == pytest.approx(
        expected.bubble_share(4, schedule), abs=0.15
    )
    assert measured["step_time_s"] >= expected.step_time_s(4, schedule)
    assert measured["num_parameters"] == 64 * 8 + 8 + 8 * 10 + 10 + 2
    phases = ("data_wait_s", "compute_s", "exposed_sync_s", "optimizer_s")
    assert sum(measured[phase] for phase in phases) == pytest.approx(
        measured["step_time_s"], rel=0.1
    )


def refused_stage(context: Any) -> str:
    """Run two stages of which the second passes on no samples."""
    from scalelab.training.engines.pipeline import passed_between_stages

    class Summed(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.sum(dim=0)

    stage = [nn.Linear(3, 2), Summed()][context.rank]
    received, output = passed_between_stages(
        stage, torch.ones(4, 3), torch.distributed.group.WORLD, context.device
    )
    return f"{tuple(received.shape)} {tuple(output.shape)}"


def test_a_stage_that_mixes_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RankFailure,
        match=r"^SpecError: parallelism=pipeline: stage 1 returns Tensor \(2,\) for 4 "
        r"samples\. Return one floating-point tensor",
    ):
        run_in_contexts(2, refused_stage, directory=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("own_workloads:TwiceCalled", r"the workload calls its model 2 times for a"),
        ("own_workloads:MapStyle", r"Linear, the model of MapStyle, is no"),
        ("own_workloads:SleepyDigits", r"returned 2 stages\. Return 3, each with"),
    ],
)
def test_workloads_that_do_not_fit_are_refused(
    tmp_path: Path, workload: str, message: str
) -> None:
    trial = piped_trial(3, workload=workload, kind=TrialKind.THROUGHPUT)
    trial = replace(trial, measurement=Measurement(warmup_steps=1, steps=2))
    with pytest.raises(
        RankFailure, match=f"^SpecError: parallelism=pipeline: .*{message}"
    ):
        run_trial(tmp_path, trial, code_directory=HERE, **SIZES.get(workload, {}))


SIZES: dict[str, Any] = {"own_workloads:TwiceCalled": {"hidden_sizes": [8, 8]}}


def test_both_ends_are_computed_as_with_the_model() -> None:
    workload = DigitsMlp()
    model, batch = workload.build_model(), workload.training_data()[:5]
    inputs = input_of_model(workload.loss, batch)
    assert inputs is batch[0]
    found = of_output(workload.evaluate, model(inputs), batch)
    torch.testing.assert_close(found, workload.evaluate(model, batch))


@pytest.mark.slow
def test_one_stage_has_no_bubble(tmp_path: Path) -> None:
    trial = piped_trial(
        1,
        workload="own_workloads:SleepyDigits",
        kind=TrialKind.THROUGHPUT,
        options={"split_size": 8, "schedule": "gpipe"},
        measurement=Measurement(warmup_steps=1, steps=4, relative_precision=1e-9),
    )
    measured = run_trial(tmp_path, trial, code_directory=HERE, stage_times_s=[0.02])
    assert measured["bubble_share"] == 0

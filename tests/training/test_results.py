from dataclasses import replace

import numpy as np
import pytest
from gang import throughput_trial

from scalelab.experiment.trial import Measurement, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.training.loop import Ending, StepTally
from scalelab.training.rank import (
    RankReadings,
    conclude,
    device_columns,
    step_columns,
    target_columns,
    validity_of,
)

TARGET = Target(metric="val_loss", mode=MetricMode.MIN, value=0.5)
TRIAL = replace(
    throughput_trial("digits_mlp", measurement=Measurement(target=TARGET)),
    kind=TrialKind.CONVERGENCE,
)


def test_slowest_rank_sets_the_step_time_and_the_throughput() -> None:
    fast = np.tile([0.1, 0.6, 0.2, 0.1], (10, 1))
    slow = np.tile([0.3, 0.8, 0.0, 0.1], (10, 1))
    columns = step_columns([fast, slow, fast], global_batch_size=48)
    assert columns["step_time_s"] == pytest.approx(1.2)
    assert columns["throughput_samples_per_s"] == pytest.approx(40.0)
    assert columns["step_time_lo_s"] == pytest.approx(1.2)
    assert columns["data_wait_s"] == pytest.approx(0.5 / 3)
    assert columns["exposed_sync_s"] == pytest.approx(0.4 / 3)


def test_no_measured_steps_leave_times_missing() -> None:
    assert step_columns([np.empty((0, 4))], global_batch_size=8) == {"num_steps": 0}


def test_three_steps_have_no_interval() -> None:
    columns = step_columns([np.ones((3, 4))], global_batch_size=8)
    assert columns["step_time_s"] == 4.0
    assert "step_time_lo_s" not in columns


def readings(**changes: float | tuple[str]) -> RankReadings:
    names = ("peak_memory_bytes", "device_memory_bytes", "utilization")
    fields = dict.fromkeys((*names, "energy_j", "power_w"))
    return RankReadings(steps=np.empty((0, 4)), **(fields | changes))


def test_one_unfit_rank_makes_the_attempt_unfit() -> None:
    assert validity_of([readings(), readings()]) is None
    unfit = readings(validity=("unsteady_clock",))
    assert validity_of([readings(), unfit, unfit]) == ["unsteady_clock"]


def test_devices_are_summed_up() -> None:
    ranks = [
        readings(
            peak_memory_bytes=10,
            device_memory_bytes=40,
            utilization=0.5,
            energy_j=100.0,
            power_w=300.0,
        ),
        readings(
            peak_memory_bytes=30,
            device_memory_bytes=48,
            utilization=1.0,
            energy_j=50.0,
            power_w=200.0,
        ),
    ]
    assert device_columns(ranks) == {
        "gpu_memory_peak_bytes": 30,
        "gpu_memory_bytes": 40,
        "gpu_utilization": 0.75,
        "energy_j": 150.0,
        "energy_source": "measured",
        "device_power_w": 250.0,
    }


def test_energy_of_some_devices_is_not_that_of_all() -> None:
    columns = device_columns([readings(energy_j=1.0, power_w=2.0), readings()])
    assert set(columns.values()) == {None}


def test_target_columns_of_a_reached_target() -> None:
    tally = StepTally(
        step=9,
        metrics={"val_loss": 0.4},
        target_step=7,
        target_s=1.5,
        evaluation_s=0.5,
    )
    assert target_columns(tally, TRIAL, "val_acc") == {
        "evaluation_s": 0.5,
        "evaluation_interval_samples": None,
        "diverged": False,
        "final_metric": 0.4,
        "final_metrics": '{"val_loss":0.4}',
        "reached_target": True,
        "steps_to_target": 7,
        "samples_to_target": 112,
        "time_to_target_s": 1.5,
    }


def test_trial_without_target_reports_the_workloads_metric() -> None:
    trial = replace(TRIAL, measurement=Measurement())
    columns = target_columns(StepTally(metrics={"val_acc": 0.9}), trial, "val_acc")
    assert columns["evaluation_s"] == 0.0
    assert columns["final_metric"] == 0.9
    assert columns["reached_target"] is None


def test_what_diverged_after_its_last_evaluation_has_no_metrics() -> None:
    tally = StepTally(step=9, metrics={"val_acc": 0.95}, ending=Ending.DIVERGED)
    columns = target_columns(tally, TRIAL, "val_acc")
    assert columns["final_metrics"] == '{"val_acc":null}'
    assert columns["final_metric"] is None
    assert columns["diverged"] is True


@pytest.mark.parametrize(
    ("tally", "outcome", "reason"),
    [
        (StepTally(step=4, target_step=4, ending=Ending.TARGET), Outcome.COMPLETED, ""),
        (
            StepTally(step=4, metrics={"val_loss": 0.75}, ending=Ending.DONE),
            Outcome.TARGET_NOT_REACHED,
            "val_loss <= 0.5 was not reached after 64 samples; the last value is 0.75.",
        ),
        (
            StepTally(step=4, ending=Ending.DIVERGED),
            Outcome.TARGET_NOT_REACHED,
            "Diverged: the training loss was no longer finite after 64 samples.",
        ),
        (
            StepTally(step=4, ending=Ending.STOPPED),
            Outcome.PREEMPTED,
            "Ended by SIGTERM at step 4.",
        ),
        (
            StepTally(step=4, ending=Ending.OUT_OF_TIME),
            Outcome.PREEMPTED,
            "Ended at step 4: the walltime of its nodes is nearly up.",
        ),
    ],
)
def test_endings_become_outcomes(
    tally: StepTally, outcome: Outcome, reason: str
) -> None:
    result = conclude(tally, TRIAL, {"num_steps": 4, "energy_j": None})
    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.measurements == {"num_steps": 4}

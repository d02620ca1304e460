from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gang import RankFailure, attempt, on, run_attempt, run_trial, throughput_trial

from scalelab.errors import SpecError
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.target import MetricMode, Target
from scalelab.training.probes.meter import Phase
from scalelab.training.workloads import emulated
from scalelab.training.workloads.declared_machine import (
    DeclaredMachine,
    declared_step_time,
)
from scalelab.training.workloads.emulated import Emulated

MACHINE = {
    "sample_time_s": 0.001,
    "fixed_time_s": 0.004,
    "inter_bandwidth_bytes_per_s": 1e10,
    "overlap": 0.3,
    "imbalance": 0.1,
    "noise": 0.02,
}
MEASUREMENT = Measurement(warmup_steps=2, steps=40, relative_precision=1e-9)


def truth(trial: Trial, **machine: float) -> float:
    return declared_step_time(
        DeclaredMachine(**machine),
        local_batch_size=trial.local_batch_size,
        gradient_accumulation_steps=trial.gradient_accumulation_steps,
        devices_per_node=trial.allocation.devices_per_node,
    )


def steadily(directory: Any, trial: Any, **machine: Any) -> Any:
    """Run a trial again where the machine was too busy to keep the declared times."""
    for number in range(5):
        measured = run_trial(directory / str(number), trial, **machine)
        if "unsteady_clock" not in (measured.get("validity") or ()):
            break
    return measured


@pytest.mark.parametrize(
    "devices_per_node",
    [
        pytest.param((1,), marks=pytest.mark.slow),
        pytest.param((2,), marks=pytest.mark.slow),
        (2, 1),
    ],
)
def test_declared_step_time_is_measured(
    tmp_path: Path, devices_per_node: tuple[int, int]
) -> None:
    trial = throughput_trial(
        "emulated",
        allocation=Allocation(devices_per_node=devices_per_node),
        gradient_accumulation_steps=2,
        measurement=MEASUREMENT,
    )
    measured = steadily(tmp_path, trial, **MACHINE)
    declared = truth(trial, **MACHINE)
    assert measured["step_time_s"] == pytest.approx(declared, rel=0.05)
    width = measured["step_time_hi_s"] - measured["step_time_lo_s"]
    assert measured["step_time_lo_s"] - width < declared
    assert declared < measured["step_time_hi_s"] + width
    assert measured["emulated"] is True
    assert measured["device_name"] == "declared machine"
    assert measured["gradient_bytes"] == 100_000_000
    assert "gpu_memory_peak_bytes" not in measured


@pytest.mark.repetition
@pytest.mark.slow
def test_64_ranks_keep_the_declared_time_on_few_cores(tmp_path: Path) -> None:
    trial = throughput_trial(
        "emulated",
        allocation=Allocation(devices_per_node=(4,) * 16),
        measurement=replace(MEASUREMENT, steps=25),
    )
    machine = MACHINE | {"fixed_time_s": 0.1}
    measured = steadily(tmp_path, trial, **machine)
    assert measured["step_time_s"] == pytest.approx(truth(trial, **machine), rel=0.05)


@pytest.mark.slow
def test_noise_is_the_same_on_all_ranks_and_another_in_every_trial(
    tmp_path: Path,
) -> None:
    trial = on(throughput_trial("emulated", local_batch_size=1), 2)
    machine = {"sample_time_s": 0.0, "fixed_time_s": 0.01, "noise": 0.5}
    means = [
        run_trial(
            tmp_path / str(repeat),
            replace(trial, repeat=repeat, measurement=replace(MEASUREMENT, steps=10)),
            **machine,
        )["step_time_s"]
        for repeat in (0, 1)
    ]
    assert means[0] != pytest.approx(means[1], rel=0.02)


def test_declared_convergence_is_reached_where_declared(tmp_path: Path) -> None:
    trial = throughput_trial(
        "emulated",
        kind=TrialKind.CONVERGENCE,
        local_batch_size=100,
        measurement=Measurement(
            max_samples=5000,
            evaluate_every_samples=100,
            target=Target(metric="val_acc", mode=MetricMode.MAX, value=0.95),
        ),
    )
    parameters = {"sample_time_s": 0.0, "fixed_time_s": 0.001}
    parameters |= {"min_samples": 1000, "critical_batch_size": 400}
    measured = run_trial(tmp_path / "1", trial, **parameters)
    assert measured["samples_to_target"] == 1300
    assert measured["gradient_noise_scale"] == 400


def test_convergence_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    trial = throughput_trial(
        "emulated",
        kind=TrialKind.CONVERGENCE,
        measurement=Measurement(max_samples=100),
    )
    with pytest.raises(RankFailure, match=r"SpecError: .* declares no convergence"):
        run_trial(tmp_path, trial)
    with pytest.raises(SpecError, match=r"min_samples=10 and .*=None belong together"):
        Emulated(min_samples=10)


def test_batch_beyond_the_declared_memory_is_out_of_memory(tmp_path: Path) -> None:
    memory = {
        "device_memory_bytes": 1000,
        "memory_fixed_bytes": 200,
        "memory_per_sample_bytes": 50,
    }
    quick = Measurement(warmup_steps=0, steps=4)
    trial = throughput_trial("emulated", local_batch_size=16, measurement=quick)
    measured = run_trial(tmp_path / "1", trial, **memory)
    assert measured["gpu_memory_peak_bytes"] == 1000
    assert measured["gpu_memory_bytes"] == 1000
    bigger = replace(trial, local_batch_size=17)
    message = "OutOfMemoryError: local_batch_size=17 needs 1050 bytes, the declared"
    with pytest.raises(RankFailure, match=message):
        run_attempt(attempt(tmp_path / "2", bigger, **memory))


def test_stopped_emulation_goes_on(tmp_path: Path) -> None:
    trial = throughput_trial(
        "emulated",
        kind=TrialKind.CONVERGENCE,
        measurement=Measurement(max_samples=640, evaluate_every_samples=160),
    )
    parameters = {"sample_time_s": 0.0, "fixed_time_s": 0.002}
    parameters |= {"min_samples": 100, "critical_batch_size": 400}
    first = attempt(tmp_path / "001", trial, **parameters)
    assert run_attempt(first, stop_at_step=15).outcome == "preempted"
    rest = run_trial(tmp_path / "002", trial, **parameters)
    assert rest["num_samples"] == 640
    assert rest["num_steps"] < 40


class LateSleeper:
    """A clock whose sleeps end 5 ms late, and a step clock that reads it."""

    def __init__(self) -> None:
        self.now, self.started = 0.0, 0.0
        self.measured = []

    def perf_counter(self) -> float:
        return self.now

    time = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 0.005

    def mark(self, phase: Phase) -> None:
        pass

    def end_step(self) -> None:
        self.measured.append(self.now - self.started)
        self.started = self.now


def test_what_a_series_lasted_too_long_is_taken_off_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LateSleeper()
    monkeypatch.setattr(emulated, "time", clock)
    trial = throughput_trial("emulated", measurement=MEASUREMENT)
    context = SimpleNamespace(world_size=1, rank=0, is_first=True, agree=list)
    workload = emulated.Emulated(sample_time_s=0.001, fixed_time_s=0.1)
    engine = emulated.EmulationEngine(workload, trial, context, clock)
    for first, num_steps in ((0, 2), (2, 5), (7, 5), (12, 5), (17, 5)):
        engine.begin(first, num_steps)
        clock.started = clock.now
        for step in range(first, first + num_steps):
            engine.step(step)
    declared = truth(trial, sample_time_s=0.001, fixed_time_s=0.1)
    assert sum(clock.measured[:2]) == pytest.approx(2 * declared + 0.005)
    assert sum(clock.measured[2:]) == pytest.approx(20 * declared + 0.005)
    assert engine.validity() == ()

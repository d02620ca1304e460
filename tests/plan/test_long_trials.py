"""The long trial of each program: which it is, when it comes, and how long it takes."""

from typing import Any

import pytest

from scalelab.errors import SpecError
from scalelab.experiment.measure import Measure
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, is_canary
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.tracked import Durations
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 4})
TEXT = """\
name: a
workload: digits_mlp
learning_rate: 0.1
gpus: [2, 4, 1]
local_batch_size: [16, 8]
job: {epochs: 10_000, samples_per_epoch: 5_000}
measure: {repeats: 2, long_trial: auto, canary_every: 4}
"""
PROGRAMS = """\
name: b
program: [{name: old, command: python a.py}, {name: new, command: python b.py}]
metrics: {regex: 'step (?P<step>\\d+)'}
gpus: [1, 2]
local_batch_size: 8
launcher: none
measure: {repeats: 1}
"""


def source_of(text: str = TEXT, **changed: str) -> PlannedTrials:
    for old, new in changed.items():
        text = text.replace(f"{old}: auto", f"{old}: {new}")
    return PlannedTrials(Experiment.from_text(text), SITE)


def told(
    trial: Trial, *, step_time_s: float = 0.1, num_steps: int = 50, **columns: float
) -> Any:
    return {
        **columns,
        "trial_id": trial.trial_id,
        "outcome": "completed",
        "kind": "throughput",
        "options.program": trial.program,
        "step_time_s": step_time_s,
        "num_steps": num_steps,
        "throughput_samples_per_s": trial.global_batch_size / step_time_s,
        "world_size": trial.world_size,
        "repeat": trial.repeat,
        "allocated_gpu_s": 10.0 * trial.world_size,
    }


def asked(source: PlannedTrials) -> list[Trial]:
    return list(iter(source.ask, None))


def run(source: PlannedTrials, **row: Any) -> list[Trial]:
    """Run all trials of a source, and return them in the order they were proposed."""
    every: list[Trial] = []
    while trials := asked(source):
        every += trials
        for trial in trials:
            source.tell(told(trial, **row))
    return every


def test_a_long_trial_knows_the_epoch_that_others_have_seen() -> None:
    source = source_of(PROGRAMS + "job: {epochs: 50}\n")
    seen = {"samples_of_pass": 700.0, "samples_of_dataset": 700}
    lengths = {
        t.measurement.samples_per_epoch for t in run(source, **seen) if t.is_long
    }
    assert lengths == {700}


def test_the_long_trial_is_the_widest_with_the_smallest_batch_and_comes_last() -> None:
    source = source_of()
    *others, last = run(source)
    assert not any(trial.is_long for trial in others)
    assert last.is_long
    assert not is_canary(last.repeat)
    assert (last.world_size, last.local_batch_size) == (4, 8)
    assert source.total == len(others) + 1
    assert source.remaining == 0


def test_it_waits_until_every_other_trial_of_its_program_has_ended() -> None:
    source = source_of(TEXT.replace("canary_every: 4", "canary_every: 0"))
    *others, last = asked(source)
    for trial in others:
        source.tell(told(trial))
        assert not asked(source)
    source.tell(told(last))
    (long,) = asked(source)
    assert long.is_long


def test_each_program_has_one_that_waits_for_no_other_program() -> None:
    source = PlannedTrials(Experiment.from_text(PROGRAMS), SITE)
    trials = asked(source)
    assert source.remaining == len(trials) + 2
    for trial in trials:
        if trial.program == "new":
            source.tell(told(trial))
    (long,) = asked(source)
    assert (long.program, long.is_long) == ("new", True)


def test_a_sweep_that_goes_on_knows_what_earlier_ones_measured() -> None:
    first, second = source_of(), source_of()
    *others, last = run(first)
    for trial in others:
        second.tell(told(trial))
    assert asked(second) == [last]
    assert [trial.trial_id for trial in run(source_of(long_trial="30s"))][-1] == (
        last.trial_id
    )


@pytest.mark.parametrize(
    ("asked_for", "job_s", "measured_s", "long_s"),
    [
        ("auto", 1e9, 1e9, 120.0),
        ("auto", 5_000.0, 1e9, 50.0),  # 1% of the job
        ("auto", 1e9, 450.0, 45.0),  # a tenth of what was measured
        ("auto", 1e9, 10.0, 20.0),
        ("auto", 100.0, 1e9, 20.0),
        ("auto", 12.0, 1e9, 12.0),  # never longer than the job
        ("40s", 1e9, 1.0, 40.0),
    ],
)
def test_its_length_is_a_hundredth_of_the_job_within_limits(
    asked_for: str, job_s: float, measured_s: float, long_s: float
) -> None:
    measure = Measure.model_validate({"long_trial": asked_for})
    assert measure.long_trial_s(measured_s=measured_s, job_s=job_s) == long_s


def test_half_of_the_time_limit_is_left_to_start_up() -> None:
    measure = Measure.model_validate({"long_trial": "2min", "timeout": "1min"})
    assert measure.long_trial_s(measured_s=0.0, job_s=1e9) == 30.0


def test_the_shortest_time_of_the_job_is_that_of_the_fastest_row() -> None:
    # 50 million samples at 320 samples/s take 156,250 s; 13 trials of 500 s each.
    *_, last = run(source_of(), step_time_s=0.1, num_steps=5_000)
    assert last.measurement.least_s == 120.0
    assert last.measurement.samples_per_epoch == 5_000
    # At 640,000 samples/s the job takes 78 s.
    *_, last = run(source_of(), step_time_s=0.1 / 2_000, num_steps=100_000_000)
    assert last.measurement.least_s == 20.0


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("auto", "none"),
        TEXT.replace("digits_mlp", "emulated").replace("learning_rate: 0.1\n", ""),
        TEXT.replace(
            "repeats: 2", "kind: convergence, max_epochs: 1, batch_norm: false"
        ).replace("5_000}", "5_000, target: 'val_acc >= 0.9'}"),
    ],
)
def test_there_is_none_where_none_is_asked_or_nothing_could_move(text: str) -> None:
    assert not any(trial.is_long for trial in source_of(text).plan.trials)


@pytest.mark.parametrize("value", ["forever", "0s", "30", 30, None, True])
def test_a_length_that_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="long_trial"):
        Experiment.from_text(TEXT.replace("auto", str(value)))


def test_other_trials_are_not_expected_to_take_as_long() -> None:
    usual, *_, long = run(source_of())
    shared = {
        "kind": "throughput",
        "outcome": "completed",
        "num_nodes": 1,
        "gradient_accumulation_steps": 1,
        "precision": "fp32",
        "parallelism": "ddp",
        "local_batch_size": 8,
    }
    rows = [
        {**shared, "world_size": 1, "allocated_gpu_s": 10.0, "repeat": usual.repeat},
        {**shared, "world_size": 4, "allocated_gpu_s": 40.0, "repeat": usual.repeat},
        {**shared, "world_size": 4, "allocated_gpu_s": 400.0, "repeat": long.repeat},
    ]
    durations = Durations(rows)
    assert durations.estimate(usual) == 10.0
    assert durations.estimate(long) == 10.0 + (long.measurement.least_s or 0.0)

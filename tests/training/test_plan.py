from dataclasses import replace

from sentences import refused

from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.training.step_plan import TrainingPlan

TRIAL = Trial(
    kind=TrialKind.CONVERGENCE,
    workload="digits_mlp",
    allocation=Allocation(devices_per_node=(2,)),
    local_batch_size=20,
    measurement=Measurement(
        warmup_steps=3, steps=50, max_samples=410, evaluate_every_samples=100
    ),
)


def boundaries(plan: TrainingPlan) -> list[int]:
    steps = [0]
    while steps[-1] < plan.num_steps:
        steps.append(plan.boundary_after(steps[-1]))
    return steps[1:]


def test_throughput_trial_has_warm_up_and_measured_steps() -> None:
    plan = TrainingPlan.of(replace(TRIAL, kind=TrialKind.THROUGHPUT))
    assert (plan.warmup_steps, plan.num_steps) == (3, 53)
    assert boundaries(plan) == [3, 53]
    assert not any(plan.is_evaluated_after(step) for step in range(54))


def test_measured_steps_are_whole_cycles() -> None:
    options = {"averaging_period": 8}
    local = replace(TRIAL, parallelism="local_sgd", options=options)
    plan = TrainingPlan.of(replace(local, kind=TrialKind.THROUGHPUT))
    assert (plan.warmup_steps, plan.num_steps) == (3, 59)
    steps = [0, 1]
    while steps[-1] < plan.num_steps:
        steps.append(steps[-1] + plan.series_after(steps[-1], 10))
    assert steps == [0, 1, 3, 11, 19, 27, 35, 43, 51, 59]
    assert TrainingPlan.of(local).cycle == 1


def test_convergence_trial_sees_at_least_its_samples() -> None:
    plan = TrainingPlan.of(TRIAL)
    assert plan.num_steps == 11
    assert boundaries(plan) == [3, 5, 8, 10, 11]
    evaluated = [step for step in range(12) if plan.is_evaluated_after(step)]
    assert evaluated == [3, 5, 8, 10, 11]


def test_without_an_interval_only_the_end_is_evaluated() -> None:
    measurement = replace(TRIAL.measurement, evaluate_every_samples=None)
    plan = TrainingPlan.of(replace(TRIAL, measurement=measurement))
    assert [step for step in range(12) if plan.is_evaluated_after(step)] == [11]


def test_interval_below_a_batch_evaluates_every_step() -> None:
    measurement = replace(TRIAL.measurement, evaluate_every_samples=7)
    plan = TrainingPlan.of(replace(TRIAL, measurement=measurement))
    assert boundaries(plan) == list(range(1, 12))
    assert all(plan.is_evaluated_after(step) for step in range(1, 12))


def test_trial_without_a_limit_is_refused() -> None:
    measurement = replace(TRIAL.measurement, max_samples=None)
    with refused("no_end", "max_samples"):
        TrainingPlan.of(replace(TRIAL, measurement=measurement))

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.prediction.next_trial import loss, value_of_knowing
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending

JOB = Job(samples=10_000_000)
EVERY = np.ones(3, dtype=bool)


def test_knowing_what_does_not_matter_is_worth_nothing(
    rng: np.random.Generator,
) -> None:
    times = np.column_stack([np.full(400, 1.0), 10 + rng.random(400)])
    losses = times.copy()
    assert value_of_knowing(losses, times, EVERY[:2]) == pytest.approx([0, 0], abs=1e-9)


def test_knowing_the_uncertain_rival_is_worth_most(rng: np.random.Generator) -> None:
    rival = np.exp(0.3 * rng.standard_normal(400))
    times = np.column_stack([np.full(400, 1.0), rival, np.full(400, 3.0)])
    gains = value_of_knowing(times, times, EVERY)
    assert gains.argmax() == 1
    perfect = 1 - np.minimum(rival, 1.0).mean()
    assert 0.7 * perfect < gains[1] <= perfect * 1.01


def test_a_row_that_may_not_be_chosen_may_be_worth_measuring() -> None:
    times = np.column_stack([np.full(400, 1.0), np.full(400, 0.5)])
    gains = value_of_knowing(times, times, np.array([True, False]))
    assert gains == pytest.approx([0.0, 0.5])


def test_a_broken_limit_costs_more_than_any_that_holds() -> None:
    times = np.array([[10.0, 100.0], [10.0, 50.0]])
    hours = np.array([[4.0, 1.0], [4.0, 1.0]])
    spent = Spending({"time": times, "device_hours": hours})
    costs = loss(spent, np.array([2.0, 1.0]), Constraints(limits={"time": 60}))
    assert costs[0, 1] > costs[0, 0]
    assert costs[1, 1] < costs[1, 0]


@pytest.mark.slow
def test_the_unmeasured_answer_is_measured_next() -> None:
    tight = Constraints(limits={"time": 7000.0})
    found = recommend(sweep((1, 2, 4, 8), seed=3), JOB, constraints=tight)
    trial = found.next_trial
    assert trial is not None
    chosen = next(r for r in found.rows if r.world_size == trial.world_size)
    assert chosen.basis != "measured"
    expected = trial.world_size * (50 * chosen.step_time_s.value + 2.0) / 3600
    assert trial.gpu_hours == pytest.approx(expected)
    assert trial.steps == 50
    assert trial.batch == chosen.batch


def test_steps_are_the_usual_ones_where_none_are_recorded() -> None:
    frame = sweep((1, 2)).drop(columns=["num_steps", "start_up_s", "kind"])
    assert recommend(frame, JOB).next_trial.steps == 60


@pytest.mark.slow
def test_a_batch_that_may_not_be_chosen_is_not_proposed() -> None:
    weak = sweep((1, 2, 4))
    found = recommend(weak, JOB)
    trial = found.next_trial
    largest = int(weak["global_batch_size"].max())
    beyond = [r for r in found.rows if r.batch.global_batch_size > largest]
    assert not [row for row in beyond if row.is_eligible]
    assert trial is None or trial.batch.global_batch_size <= largest


def strong(step_s: dict[int, float]) -> pd.DataFrame:
    """Rows of one global batch, on nodes of 8 devices."""
    rows = [
        {"world_size": size, "num_nodes": -(-size // 8), "step_time_s": seconds}
        | {"local_batch_size": 8192 // size}
        for size, seconds in step_s.items()
    ]
    return pd.DataFrame(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_s", "limit"),
    [
        # long steps: 60 of them on 2,048 devices cost a quarter of the job
        ({64: 1249.0, 128: 618.0, 256: 306.0, 512: 162.0}, {"time": 215_446.0}),
        # every further device is slower
        ({1: 5.0, 2: 9.0, 4: 13.0, 8: 16.6, 16: 21.2}, {"time": 1e6}),
    ],
)
def test_a_trial_that_cannot_win_or_costs_much_of_the_job_is_not_proposed(
    step_s: dict[int, float], limit: dict[str, float]
) -> None:
    asked = Constraints(limits=limit)
    found = recommend(strong(step_s), Job(samples=5_000_000), constraints=asked)
    assert found.meets_constraints
    trial = found.next_trial
    if trial is not None and trial.why.startswith("its step time decides"):
        (row,) = [row for row in found.rows if row.world_size == trial.world_size]
        assert row.gpu_hours.lo < found.chosen.gpu_hours.hi
        assert trial.gpu_hours <= 0.1 * found.chosen.gpu_hours.value


def test_a_limit_that_nothing_holds_is_no_reason_to_measure() -> None:
    # 32 devices are the closest, and have a chance of 1.5%
    hopeless = Constraints(limits={"time": 3600.0})
    found = recommend(sweep((1, 2, 4, 8, 16), seed=3), JOB, constraints=hopeless)
    assert not found.meets_constraints
    assert found.chosen.probability < 0.05
    assert found.next_trial is None

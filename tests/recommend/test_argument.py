"""The argument of an answer: why not the next row, and what the choice rests on."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.objective import Constraints

JOB = Job(epochs=10, samples_per_epoch=1_000_000)


def ask(frame: pd.DataFrame, batches: AskedBatch | None = None, **limits: float) -> Any:
    return recommend(
        frame, JOB, constraints=Constraints(limits=limits), batches=batches
    )


def values(answer: Recommendation, kind: str) -> Any:
    (found,) = (fact.values for fact in answer.facts if fact.kind == kind)
    return found


def row(answer: Recommendation, world_size: int) -> OutlookRow:
    return next(each for each in answer.rows if each.world_size == world_size)


@pytest.fixture(scope="module")
def scaling() -> pd.DataFrame:
    return sweep((1, 2, 4, 8, 16))


def test_its_figures_are_those_of_the_rows(scaling: pd.DataFrame) -> None:
    answer = ask(scaling)
    said, chosen = values(answer, "why_not"), answer.chosen
    other = row(answer, said["world_size"])
    assert said["than"] == chosen.world_size
    assert other.world_size == chosen.next_world_size
    ratio = chosen.time_s.value / other.time_s.value
    assert said["speedup"] == pytest.approx(ratio)
    hours = other.gpu_hours.value / chosen.gpu_hours.value
    assert said["cost_ratio"] == pytest.approx(hours)
    assert said["reason"] == "pays_too_little"
    assert said["speedup"] < said["needed"] == 1.7


def test_under_a_deadline_it_is_the_cheaper_row_that_misses_it(
    scaling: pd.DataFrame,
) -> None:
    times = {each.world_size: each.time_s.value for each in ask(scaling).rows}
    answer = ask(scaling, time=(times[4] + times[8]) / 2)
    assert answer.chosen.world_size == 8
    said = values(answer, "why_not")
    assert (said["world_size"], said["reason"]) == (4, "unlikely")
    assert said["probability"] == row(answer, 4).probability < 0.1
    assert said["limits"] == [*answer.limits]


def test_where_the_cheapest_meets_the_deadline_more_are_not_needed(
    scaling: pd.DataFrame,
) -> None:
    answer = ask(scaling, time=1e7)
    said = values(answer, "why_not")
    chosen = answer.chosen
    assert said["reason"] == "takes_more"
    assert said["world_size"] > chosen.world_size
    assert said["cost_ratio"] > 1


def test_within_a_budget_it_is_the_faster_row_that_breaks_it(
    scaling: pd.DataFrame,
) -> None:
    hours = {each.world_size: each.gpu_hours.value for each in ask(scaling).rows}
    answer = ask(scaling, device_hours=(hours[8] + hours[16]) / 2)
    assert answer.chosen.world_size == 8
    said = values(answer, "why_not")
    assert (said["world_size"], said["reason"]) == (16, "unlikely")
    assert said["speedup"] > 1


def test_a_batch_beyond_the_measured_may_be_allowed() -> None:
    weak = sweep((1, 2, 4), global_batch=None, local_batches=(32,))
    said = values(ask(weak), "why_not")
    assert said["reason"] == "batch_too_large"
    assert (said["global_batch_size"], said["largest"]) == (256, 128)
    allowed = AskedBatch(largest=said["global_batch_size"])
    assert values(ask(weak, allowed), "why_not")["reason"] != "batch_too_large"


def test_where_nothing_meets_it_is_what_comes_nearer(scaling: pd.DataFrame) -> None:
    answer = ask(scaling, time=60.0)
    assert not answer.meets_constraints
    said = values(answer, "why_not")
    assert said["world_size"] != answer.chosen.world_size
    assert not [fact for fact in answer.facts if fact.kind == "choice_in_draws"]


def test_of_one_count_nothing_is_compared() -> None:
    answer = recommend(sweep((4,)), JOB, gpus=[4])
    assert values(answer, "only_count") == {"world_size": 4}


def test_repeats_that_agree_confirm_the_step_time(scaling: pd.DataFrame) -> None:
    answer = ask(scaling)
    said, batch = values(answer, "step_time"), answer.chosen.batch
    alike = scaling[
        (scaling["world_size"] == answer.chosen.world_size)
        & (scaling["local_batch_size"] == batch.local_batch_size)
    ]["step_time_s"]
    assert said["num_runs"] == len(alike) == 3
    assert said["apart"] == pytest.approx((alike / alike.median() - 1).abs().max())
    assert (said["basis"], said["is_contradicted"]) == ("measured", False)
    slow = scaling.assign(
        step_time_s=np.where(
            scaling.index == alike.index[0],
            3 * scaling["step_time_s"],
            scaling["step_time_s"],
        )
    )
    assert values(ask(slow), "step_time")["is_contradicted"]


@pytest.mark.parametrize(("noise", "least", "most"), [(0.003, 390, 400), (0.6, 0, 390)])
def test_a_clear_choice_is_the_same_in_all_draws(
    noise: float, least: int, most: int
) -> None:
    said = values(ask(sweep((1, 2, 4, 8, 16), noise=noise)), "choice_in_draws")
    assert said["num_draws"] == 400
    assert least <= said["num_same"] <= most


def test_runs_that_reached_the_target_are_counted() -> None:
    frame = pd.concat([sweep(global_batch=None), convergence()], ignore_index=True)
    answer = recommend(frame, Job(target="val_acc >= 0.9"))
    said = values(answer, "target_reached")
    assert said["global_batch_size"] == answer.chosen.batch.global_batch_size
    tried = frame[
        (frame["kind"] == "convergence")
        & (frame["global_batch_size"] == said["global_batch_size"])
    ]
    assert said["num_runs"] == len(tried)
    assert said["num_reached"] == tried["reached_target"].sum()

"""Answers from sweeps with a long trial, whose later steps are as before or not."""

from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.experiment.trial import LONG
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text

JOB = Job(samples=10_000_000)
ROWS = sweep((1, 2, 4)).assign(num_samples=14_080, measured_by="log", run="a")


def with_long(rows: pd.DataFrame = ROWS, **columns: Any) -> pd.DataFrame:
    """Return a sweep with a long trial of its widest configuration, of about 40 s."""
    row = rows.iloc[-1].to_dict()
    row |= {"repeat": LONG, "validity": ["long_trial"], "busy_machine": False}
    row |= {"num_steps": 40 / row["step_time_s"], "num_samples": 100_000}
    row |= {
        "window_step_time_s": row["step_time_s"],
        "later_step_time_s": row["step_time_s"],
        "later_differs": None,
    }
    long = {name: [value] for name, value in {**row, **columns}.items()}
    return pd.concat([rows, pd.DataFrame(long)], ignore_index=True)


def later(factor: float, why: str = "unexplained", **columns: Any) -> pd.DataFrame:
    """Return a sweep whose long trial takes so many times as long later."""
    later_s = factor * ROWS.iloc[-1]["step_time_s"]
    return with_long(later_step_time_s=later_s, later_differs=why, **columns)


def answer_of(rows: pd.DataFrame) -> Recommendation:
    return recommend(rows, JOB)


def found(answer: Recommendation, kind: str) -> list[Fact]:
    return [fact for fact in answer.facts if fact.kind == kind]


def test_a_long_trial_that_goes_on_as_before_changes_no_figure() -> None:
    alone, beside = answer_of(ROWS), answer_of(with_long())
    assert [row.time_s for row in beside.rows] == [row.time_s for row in alone.rows]
    assert beside.chosen.world_size == alone.chosen.world_size
    assert not found(beside, "later_differs")
    assert not beside.left_out


def test_the_answer_says_how_long_it_measured() -> None:
    (fact,) = found(answer_of(with_long()), "long_trial")
    assert fact.values["num_trials"] == len(ROWS)
    assert fact.values["long_s"] == pytest.approx(40)
    assert 0 < fact.values["each_s"] < 40
    assert not found(answer_of(ROWS), "long_trial")


@pytest.mark.parametrize("factor", [0.2, 1.2, 4.0])
def test_later_steps_that_nothing_explains_leave_nothing_to_choose(
    factor: float,
) -> None:
    answer = answer_of(later(factor))
    assert {row.barred_by for row in answer.rows} == {"contradicted"}
    (fact,) = found(answer, "later_differs")
    assert fact.values["factor"] == pytest.approx(factor, rel=0.02)
    head = " ".join(answer_text(answer).split("\n\n")[0].split())
    assert "nothing shows why" in head


@pytest.mark.parametrize("factor", [0.88, 1.12])
def test_a_change_that_an_answer_may_be_wrong_by_contradicts_nothing(
    factor: float,
) -> None:
    answer = answer_of(later(factor))
    assert not found(answer, "later_differs")
    assert "contradicted" not in {row.barred_by for row in answer.rows}


def test_later_steps_are_held_against_all_runs_of_their_configuration() -> None:
    usual_s = ROWS.iloc[-1]["step_time_s"]
    slow_window = with_long(
        window_step_time_s=1.3 * usual_s, later_differs="unexplained"
    )
    assert not found(answer_of(slow_window), "later_differs")
    both = slow_window.assign(later_step_time_s=slow_window["later_step_time_s"] * 1.3)
    (fact,) = found(answer_of(both), "later_differs")
    assert fact.values["factor"] == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize(
    "columns", [{"busy_machine": True}, {"validity": ["long_trial", "oversubscribed"]}]
)
def test_a_disturbed_long_trial_contradicts_nothing(columns: dict[str, Any]) -> None:
    answer = answer_of(later(4.0, **columns))
    assert "contradicted" not in {row.barred_by for row in answer.rows}
    assert not found(answer, "later_differs")


def test_a_change_within_the_scatter_of_runs_contradicts_nothing() -> None:
    scattered = sweep((1, 2, 4), noise=0.1).assign(num_samples=14_080, run="a")
    longer_s = 1.2 * scattered.iloc[-1]["step_time_s"]
    changed = {"later_step_time_s": longer_s, "later_differs": "unexplained"}
    answer = answer_of(with_long(scattered, **changed))
    assert not found(answer, "later_differs")
    assert "contradicted" not in {row.barred_by for row in answer.rows}


def test_rows_of_the_first_epoch_become_those_of_later_ones() -> None:
    epoch = {"first_epoch_s": 50.0, "first_epoch_samples": 20_000}
    alone, beside = answer_of(ROWS), answer_of(later(0.25, "first_epoch", **epoch))
    for before, after in zip(alone.rows, beside.rows, strict=True):
        steps_s = before.time_s.value - 2.0
        assert after.time_s.value == pytest.approx(0.25 * steps_s + 52.0, rel=0.01)
    assert beside.chosen.is_eligible


def test_rows_that_went_beyond_the_first_epoch_are_left_as_they_are() -> None:
    epoch = {"first_epoch_s": 0.0, "first_epoch_samples": 10_000}
    alone, beside = answer_of(ROWS), answer_of(later(0.25, "first_epoch", **epoch))
    assert [row.time_s for row in beside.rows] == [row.time_s for row in alone.rows]


def test_pauses_are_added_to_the_time_of_the_job() -> None:
    paused = {"evaluation_s": 20.0, "evaluation_interval_samples": 50_000}
    alone, beside = answer_of(ROWS), answer_of(later(1.0, "pauses", **paused))
    # 20 s in 100,000 samples.
    added_s = 20.0 * 10_000_000 / 100_000
    for before, after in zip(alone.rows, beside.rows, strict=True):
        assert after.time_s.value == pytest.approx(before.time_s.value + added_s)


def test_another_program_is_not_contradicted() -> None:
    other = ROWS.assign(**{"options.program": "new"})
    rows = later(4.0).assign(**{"options.program": "old"})
    answer = answer_of(pd.concat([rows, other], ignore_index=True))
    assert answer.chosen.settings["program"] == "new"
    assert answer.chosen.is_eligible

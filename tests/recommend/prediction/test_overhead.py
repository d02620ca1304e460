"""What a job takes beside its training steps."""

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.prediction.needs import Overhead
from scalelab.recommend.question.objective import Constraints

JOB = Job(samples=1_000_000)


def test_the_longest_start_up_counts() -> None:
    rows = pd.DataFrame({"start_up_s": pd.array([3.0, None, 41.0], dtype="Float64")})
    assert Overhead.of(rows).start_up_s == 41
    assert Overhead.of(rows.iloc[:0]).seconds(
        np.ones((1, 2)), rows.iloc[:2]
    ).tolist() == [[0, 0]]
    assert Overhead.of(rows[["start_up_s"]].iloc[1:2]).by_part(1e6, {}) == {}


def test_the_start_up_of_another_feed_is_its_own() -> None:
    rows = pd.DataFrame(
        {
            "start_up_s": [3.0, 4.0, 60.0, 55.0, 5.0],
            "options.feed": ["folder", "folder", "copy_first", "copy_first", None],
        }
    )
    found = Overhead.of(rows)
    asked = rows.iloc[[0, 2, 4]]
    assert found.seconds(np.zeros((1, 3)), asked).tolist() == [[4.0, 60.0, 60.0]]
    by_part = found.by_part(1.0, {"options.feed": "folder"})
    assert by_part == {"start-up": 4.0}


def test_evaluation_follows_from_trials_that_saw_how_often_there_is_one() -> None:
    rows = pd.DataFrame(
        {
            "num_samples": [1000, 1000, 1000],
            "evaluation_s": [5.0, 900.0, None],
            # The second saw one evaluation: who knows when the next comes.
            "evaluation_interval_samples": pd.array([100, None, 100], dtype="Float64"),
        }
    )
    assert Overhead.of(rows).by_part(2000.0, {}) == {"evaluation": pytest.approx(10.0)}
    assert Overhead.of(rows.iloc[1:]).by_part(2000.0, {}) == {}


@pytest.mark.slow
def test_a_chance_counts_start_up_where_it_was_measured() -> None:
    rows = sweep((1, 2), local_batches=(16,), repeats=2)
    quick, slow, unknown = (
        recommend(rows.assign(start_up_s=s), JOB) for s in (10.0, 3600.0, None)
    )
    times = [answer.rows[0].time_s.value for answer in (quick, slow, unknown)]
    assert times[0] - times[2] == pytest.approx(10.0)
    assert times[1] - times[2] == pytest.approx(3600.0)
    rates = {a.rows[0].throughput_samples_per_s.value for a in (quick, slow)}
    assert max(rates) == pytest.approx(min(rates))
    limits = Constraints(limits={"time": times[2] + 1800.0})
    missed = recommend(rows.assign(start_up_s=3600.0), JOB, constraints=limits)
    met = recommend(rows.assign(start_up_s=None), JOB, constraints=limits)
    assert (missed.rows[0].probability, met.rows[0].probability) == (0.0, 1.0)


def test_declared_times_have_no_overhead() -> None:
    rows = sweep((1, 2), local_batches=(16,), repeats=2, emulated=True)
    (fact,) = (f for f in recommend(rows, JOB).facts if f.kind == "times_contain")
    assert fact.values["beside_s"] == {}
    assert fact.values["not_in"][0] == "start-up"

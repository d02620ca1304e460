"""The time limit of the recommended job, and how many jobs it takes."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_runs import outlook_row, recommendation
from sentences import Golden

from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.job_lines import JobTime
from scalelab.recommend.answer.recommendation import Recommendation

HOUR = 3600.0


def answer(**values: Any) -> Recommendation:
    return recommendation([outlook_row(8, 512, is_chosen=True)], **values)


def time(**changes: Any) -> JobTime:
    known: dict[str, Any] = {
        "time_s": 10 * HOUR,
        "confidence": 0.9,
        "start_up_s": 60.0,
        "walltime_s": None,
    }
    return JobTime(**{**known, **changes})


def test_the_upper_end_of_80_percent_is_held_with_90_percent() -> None:
    found = answer(confidence=0.9, interval=0.8)
    time_s = JobTime.of(found, None).time_s
    assert time_s == pytest.approx(found.chosen.time_s.hi)


def test_more_confidence_asks_for_more_time() -> None:
    row = answer().chosen
    times = [
        JobTime.of(answer(confidence=each), None).time_s
        for each in (0.5, 0.8, 0.9, 0.99)
    ]
    assert times == sorted(times)
    assert times[1] > row.time_s.value
    assert times[3] > row.time_s.hi > times[1]


def test_the_limit_holds_the_time_of_the_answer_and_what_was_not_measured(
    golden: Golden,
) -> None:
    asked = time()
    assert asked.limit_s == 11 * HOUR
    assert asked.num_jobs == 1
    golden(asked.in_words())


def test_a_short_job_is_given_some_minutes(golden: Golden) -> None:
    short = time(time_s=3.0)
    assert short.limit_s == 600
    golden(short.in_words())


def test_start_up_is_that_of_the_answer() -> None:
    values = {"contents": "steps", "beside_s": {"start-up": 41.0}, "not_in": []}
    found = answer(facts=(Fact("times_contain", values),))
    assert JobTime.of(found, None).start_up_s == 41
    assert JobTime.of(answer(), None).start_up_s == 0


@pytest.mark.parametrize(
    ("walltime_h", "num_jobs"), [(None, 1), (24, 1), (11.5, 1), (6, 2), (2, 6), (1, 12)]
)
def test_what_does_not_fit_into_a_job_takes_several(
    walltime_h: float | None, num_jobs: int
) -> None:
    walltime_s = walltime_h and walltime_h * HOUR
    asked = time(walltime_s=walltime_s)
    assert asked.num_jobs == num_jobs
    assert asked.limit_s is not None
    assert asked.limit_s * num_jobs >= 11 * HOUR
    assert walltime_s is None or asked.limit_s <= walltime_s


def test_a_time_without_an_upper_end_leaves_the_limit_to_the_site(
    golden: Golden,
) -> None:
    asked = time(time_s=float("inf"), walltime_s=HOUR)
    assert (asked.limit_s, asked.num_jobs) == (HOUR, 1)
    assert time(time_s=float("inf")).limit_s is None
    golden(asked.in_words())

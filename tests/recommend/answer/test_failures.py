from dataclasses import replace
from typing import Any

import pytest
from made_up_runs import planned, recommendation, trial_row

from scalelab.recommend.answer.failures import failures_in_words
from scalelab.recommend.answer.text import answer_text
from scalelab.records.observations import frame

Row = dict[str, Any]


def failed(number: int, reason: str | None = "rank 0 died.", **values: Any) -> Row:
    ended = {"outcome": "failed", "step_time_s": None} | values
    return trial_row(8, 64, trial_id=f"bad{number}", reason=reason, **ended)


def good(number: int) -> Row:
    return trial_row(1, 64, trial_id=f"good{number}")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([good(0), good(1)], ""),
        (
            [good(0), good(1), *(failed(n) for n in range(10))],
            "From 2 of 12 trials; 10 failed: rank 0 died.",
        ),
        (
            [good(0), failed(0, "a\nb"), failed(1, "a\nb"), failed(2, "c")],
            "From 1 of 4 trials; 3 failed, 2 of them: a b.",
        ),
        ([good(0), failed(0, None)], "From 1 of 2 trials; 1 failed: failed."),
        ([good(0), failed(0) | {"trial_id": "good0", "attempt": 2}], ""),
        ([good(0), failed(0, outcome="preempted")], ""),
        (
            [
                good(0),
                failed(0, None, outcome="timed_out"),
                failed(1, outcome="out_of_memory"),
            ],
            "From 1 of 3 trials; 1 did not fit into memory; 1 failed: timed out.",
        ),
        ([good(0), failed(0, outcome="out_of_memory")], ""),
    ],
)
def test_failures_are_counted_by_trial_and_explained(
    rows: list[Row], said: str
) -> None:
    assert failures_in_words(frame(rows)) == said


def test_a_long_reason_is_cut() -> None:
    said = failures_in_words(frame([good(0), failed(0, "x" * 500)]))
    assert said.endswith("x ....")
    assert len(said) < 170


def test_failures_reach_the_headline() -> None:
    answer = recommendation(planned((1, 2), chosen=2, measured_up_to=2))
    headline = answer_text(
        replace(answer, failures="From 2 of 12 trials; 10 failed: no.")
    ).split("\n\n")[0]
    assert headline.splitlines()[-1] == "From 2 of 12 trials; 10 failed: no."
    assert "trials;" not in answer_text(answer)


def test_an_imported_table_has_no_failures() -> None:
    assert failures_in_words(frame([good(0) | {"trial_id": None}])) == ""

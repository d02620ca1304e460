"""Answers from trials beside which other programs took the cores."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text

JOB = Job(samples=10_000_000)
QUIET = {"busy_machine": False, "load_average": 1.2, "cores_at_hand": 2}
BUSY = {"busy_machine": True, "load_average": 5.26, "cores_at_hand": 2}


def answer_of(rows: pd.DataFrame) -> Recommendation:
    return recommend(rows, JOB)


def kinds(answer: Recommendation) -> set[str]:
    return {fact.kind for fact in answer.facts}


@pytest.mark.parametrize("columns", [{}, QUIET])
def test_a_quiet_machine_is_not_accused(columns: dict[str, object]) -> None:
    answer = answer_of(sweep((1, 2), **columns))
    assert not {"busy_machine", "gpu_throttled"} & kinds(answer)


def test_the_first_lines_say_that_the_machine_was_busy() -> None:
    answer = answer_of(sweep((1, 2), **BUSY))
    head = " ".join(answer_text(answer).split("\n\n")[0].split())
    assert "Other programs used this machine (load 5.3 on 2 cores): these" in head


def test_some_busy_trials_are_counted() -> None:
    rows = sweep((1, 2), **QUIET)
    rows.loc[rows.index[:2], "busy_machine"] = True
    (fact,) = (fact for fact in answer_of(rows).facts if fact.kind == "busy_machine")
    assert (fact.values["count"], fact.values["num_trials"]) == (2, len(rows))


def test_a_gpu_that_lowered_its_clocks_is_said() -> None:
    answer = answer_of(sweep((1, 2), **QUIET, gpu_throttled=True))
    assert "gpu_throttled" in kinds(answer)
    head = answer_text(answer).split("\n\n")[0]
    assert "A GPU lowered its clocks" in head

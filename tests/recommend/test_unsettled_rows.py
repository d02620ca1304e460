"""Answers from trials whose step times had not settled when they ended."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.question.objective import Constraints

SIZES = (1, 2, 4)
JOB = Job(samples=10_000_000)


def unsettled(sizes: tuple[int, ...], bound: str) -> pd.DataFrame:
    """Return a sweep in which trials on some device counts had not settled."""
    rows = sweep(SIZES)
    is_settled = ~rows["world_size"].isin(sizes)
    bounds = is_settled.map({True: None, False: bound})
    return rows.assign(settled=is_settled, step_time_bound=bounds)


@pytest.mark.parametrize("bound", ["at_most", "at_least"])
def test_a_settled_row_is_chosen_before_one_that_is_not(bound: str) -> None:
    answer = recommend(unsettled((2, 4), bound), JOB)
    assert answer.chosen.world_size == 1
    others = [row for row in answer.rows if row.world_size > 1]
    assert {(row.marks, row.barred_by) for row in others} == {("settled", "marked")}


@pytest.mark.parametrize(
    ("bound", "words", "is_sure"),
    [("at_most", "at most", True), ("at_least", "at least", False)],
)
def test_where_no_row_has_settled_the_bound_is_said(
    bound: str, words: str, is_sure: bool
) -> None:
    rows = unsettled(SIZES, bound)
    ample_s = 2 * recommend(rows, JOB).chosen.time_s.value
    answer = recommend(rows, JOB, constraints=Constraints(limits={"time": ample_s}))
    assert answer.chosen.world_size > 1
    assert answer.chosen.probability is not None
    assert (answer.chosen.probability > 0.9) is is_sure
    assert is_sure or answer.chosen.probability <= 0.5

    head, *rest = answer_text(answer).split("\n\n")
    assert f"had not settled, {words}" in " ".join(head.split())
    assert any("?: step times had not settled." in part for part in rest)


def test_one_settled_run_of_a_configuration_is_enough() -> None:
    rows = sweep(SIZES)
    rows = rows.assign(settled=rows["repeat"] == 0, step_time_bound="at_least")
    answer = recommend(rows, JOB)
    assert {row.marks for row in answer.rows} == {None}

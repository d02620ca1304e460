"""The table of what other limits would choose: where there is one, what it holds."""

from collections.abc import Mapping
from typing import Any

import pytest
from five_outputs import tables

from scalelab.session import Run, import_table

JOB = {"epochs": 90, "samples_per_epoch": 1_281_167}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    here = tmp_path_factory.mktemp("what_if")
    tables(here)
    return import_table(here / "pictures.csv", here / "runs" / "pictures")


def table(run: Run, **asked: Any) -> Mapping[str, Any]:
    answer = run.recommend(job=JOB, no_history=True, what_if=True, **asked)
    assert "what_if" not in answer.to_json()
    return answer.what_if


def test_it_holds_the_candidates_and_the_choice_without_limits(run: Run) -> None:
    found, answer = table(run), run.recommend(job=JOB, no_history=True)
    sizes = [row["size"] for row in found["rows"]]
    assert {*sizes} >= {row.world_size for row in answer.rows if row.is_eligible}
    assert not {row.world_size for row in answer.rows if not row.is_eligible} & {*sizes}
    chosen = {sizes[at] for at in found["unlimited"]}
    assert chosen == {answer.chosen.world_size}
    assert found["confidences"] == [0.5, 0.75, 0.8, 0.9, 0.95, 0.99]
    assert found["limited"] == {}
    assert found["price"] is None


def test_a_confidence_that_was_asked_is_among_those_of_the_table(run: Run) -> None:
    found = table(run, confidence=0.85, max_time="2h")
    assert found["confidences"] == [0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99]
    assert found["limited"] == {"time": 7200}


def test_chances_come_from_the_draws_of_a_row(run: Run) -> None:
    found = table(run)
    row = found["rows"][-1]
    steps = sum(row["steps"]) * row["time_s"][0] / found["places"]
    assert row["steps"][0] > 0
    assert row["time_s"][1] < row["time_s"][0] < row["time_s"][2] < steps
    assert len(row["steps"]) == len(found["classes"]) - 1
    sure = [each["sure"] for each in found["classes"]]
    assert sure == sorted(sure)
    assert (sure[0], sure[-1]) == (0, len(found["confidences"]))


def test_one_price_for_all_is_one_of_the_table(run: Run) -> None:
    assert table(run, price="2.5usd")["price"] == pytest.approx(2.5)
    assert table(run, price="20usd/node-h") == {}, "a node may be used in part"


@pytest.mark.parametrize(
    "asked",
    [
        {"max_energy": "1MWh", "power": "400W"},
        {"max_cost": "900usd", "max_gpu_hours": 90, "price": "2usd"},
        {"spot": {"price": 0.5, "interrupted_every": "6h"}, "price": "2usd"},
    ],
)
def test_where_one_time_does_not_decide_there_is_no_table(
    run: Run, asked: dict[str, Any]
) -> None:
    assert table(run, **asked) == {}


def test_a_kept_answer_has_no_table_and_does_not_stand_in_its_way(run: Run) -> None:
    assert table(run)
    assert run.recommend(job=JOB, no_history=True).what_if == {}
    assert table(run)

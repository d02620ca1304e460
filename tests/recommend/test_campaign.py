"""The campaign of an answer: its plan, its limits, and what else an answer says."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import refused
from test_by_device import question

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.by_device import answer
from scalelab.recommend.question.objective import Constraints

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return sweep((1, 2, 4, 8, 16), per_node=1, seed=5, device_name="p2")


def asked(
    frame: pd.DataFrame, runs: int = 24, pool: int = 16, **limits: float
) -> Recommendation:
    of_all = Constraints(limits=limits)
    return answer(replace(question(limits=of_all), runs=runs, pool=pool), frame, {})


def campaign(found: Recommendation) -> dict[str, Any]:
    (fact,) = [f for f in found.facts if f.kind == "campaign"]
    return dict(fact.values)


def test_one_run_is_answered_as_without_a_campaign(frame: pd.DataFrame) -> None:
    plain = answer(question(), frame, {})
    found = asked(frame, time=1.0)
    assert found.rows == plain.rows
    assert found.meets_constraints
    assert not found.is_met
    assert sentences(found)["use"] == sentences(plain)["use"]
    assert "No plan surely meets < 1 s" in sentences(found)["campaign"][0]


def test_the_soonest_plan_is_no_worse_than_what_comes_to_mind(
    frame: pd.DataFrame,
) -> None:
    values = campaign(asked(frame))
    time_s = values["plan"]["time_s"]["value"]
    for other in ("one_after_another", "on_the_fewest"):
        assert time_s <= 1.001 * values[other]["time_s"]["value"]
    assert values["lower_bound_s"] <= time_s
    assert sum(share["num_runs"] for share in values["plan"]["shares"]) == 24
    (fewest,) = values["on_the_fewest"]["shares"]
    assert (fewest["world_size"], fewest["side_by_side"]) == (1, 16)


def test_with_a_deadline_the_cheapest_that_holds_it_is_chosen(
    frame: pd.DataFrame,
) -> None:
    soonest = campaign(asked(frame, runs=4))["plan"]
    ample = campaign(asked(frame, runs=4, time=100 * soonest["time_s"]["value"]))
    assert ample["holds"]
    assert ample["plan"]["gpu_hours"]["value"] <= soonest["gpu_hours"]["value"]
    assert ample["plan"]["time_s"]["value"] > soonest["time_s"]["value"]
    tight = campaign(asked(frame, runs=4, time=1.2 * soonest["time_s"]["value"]))
    assert tight["holds"]
    assert tight["plan"]["probability"] >= 0.9


def test_a_pool_without_room_is_refused(frame: pd.DataFrame) -> None:
    large = frame[frame["world_size"] >= 4].reset_index(drop=True)
    with refused("pool_too_small", "pool=2"):
        asked(large, pool=2)

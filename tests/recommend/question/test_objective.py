from typing import Any

import numpy as np
import pytest
from sentences import Golden, refused

from scalelab.errors import SpecError
from scalelab.kinds.resources import Units
from scalelab.recommend.money.prices import Price
from scalelab.recommend.question.choice import (
    Allocations,
    Choice,
    best_within,
    largest_paying,
)
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending, beating, pareto


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"limits": {"time": 0}}, "max_time_s=0 must be a positive number"),
        (
            {"limits": {"device_hours": -1.0}},
            r"max_gpu_hours=-1\.0 must be a positive number",
        ),
        (
            {"limits": {"time": float("inf")}},
            "max_time_s=inf must be a positive number",
        ),
    ],
)
def test_wrong_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Constraints(**limits)


def test_a_limit_on_money_needs_a_price() -> None:
    ones = np.ones(2)
    with refused("limit_without_price", "max_cost='20 usd'", "--price"):
        Constraints(limits={"money": 20}).spending(ones, ones, ones)


def test_every_limit_must_hold() -> None:
    limits = Constraints(limits={"device_hours": 8, "money": 20}, price=Price(amount=4))
    spent = Spending(
        {
            "time": np.array([1.0, 1.0, 1.0]),
            "device_hours": np.array([5.0, 6.0, 10.0]),
            "money": np.array([20.0, 24.0, 40.0]),
        }
    )
    assert limits.held(spent).tolist() == [True, False, False]
    assert limits.excess(spent) == pytest.approx([1.0, 1.2, 2.0])
    assert limits.in_words(Units("GPU-h")) == ("< 8 GPU-h", "< 20 usd")
    assert Constraints(limits={"device_hours": 1e-3}).in_words(Units("core-h")) == (
        "< 3.6 core-s",
    )


def test_pareto_keeps_ties_and_drops_the_beaten() -> None:
    time = np.array([4.0, 2.0, 2.0, 3.0])
    hours = np.array([1.0, 2.0, 2.0, 2.5])
    assert pareto(time, hours).tolist() == [True, True, True, False]


TIME = np.array([100.0, 60.0, 40.0])
HOURS = np.array([1.0, 1.2, 1.6])


def pick(
    probability: list[float],
    confidence: float = 0.9,
    eligible: tuple[bool, ...] = (True, True, True),
    measured: tuple[bool, ...] = (True, True, True),
    hours: np.ndarray = HOURS,
    **limits: float,
) -> Choice:
    among = Allocations(
        spent=Spending({"time": TIME, "device_hours": hours}),
        probability=np.array(probability),
        is_eligible=np.array(eligible),
        is_measured=np.array(measured),
    )
    return best_within(among, Constraints(limits=limits, confidence=confidence))


def test_a_deadline_prefers_the_cheapest_that_holds_it() -> None:
    choice = pick([0.1, 0.95, 1.0], time=70)
    assert (choice.index, choice.meets) == (1, True)


def test_a_budget_prefers_the_fastest_that_holds_it() -> None:
    choice = pick([1.0, 0.95, 0.3], device_hours=1.4)
    assert (choice.index, choice.meets) == (1, True)


def test_confidence_is_what_was_asked_for() -> None:
    assert pick([0.0, 0.8, 1.0], time=70, confidence=0.7).index == 1
    assert pick([0.0, 0.8, 1.0], time=70, confidence=0.9).index == 2


@pytest.mark.parametrize(("saved", "index"), [(0.04, 1), (0.06, 0)])
def test_what_was_not_measured_must_save_more(saved: float, index: int) -> None:
    hours = np.array([1.0 - saved, 1.0, 1.2])
    sure, first_unmeasured = [1.0, 1.0, 1.0], (False, True, True)
    choice = pick(sure, measured=first_unmeasured, hours=hours, time=200)
    assert choice.index == index
    # It is said where it decides.
    assert ("within 5% of it, what was measured comes first" in choice.rule) is (
        index > 0
    )
    # Of two that were measured, the faster one.
    assert pick(sure, hours=hours, time=200).index == index


def test_of_a_tie_the_faster_one_is_chosen() -> None:
    hours = np.array([1.0, 1.04, 1.2])
    assert pick([1.0, 1.0, 1.0], hours=hours, time=200).index == 1
    measured = (True, False, True)
    assert pick([1.0, 1.0, 1.0], measured=measured, hours=hours, time=200).index == 0


@pytest.mark.parametrize(
    ("time", "hours", "beats"),
    [
        (0.5, 1.0, True),
        (0.5, 1.02, False),
        (0.96, 1.0, False),
        (1.0, 0.9, True),
        (1.02, 0.9, False),
    ],
)
def test_a_row_is_beaten_by_what_is_clearly_better_and_no_worse(
    time: float, hours: float, beats: bool
) -> None:
    draws = np.exp(np.random.default_rng(1).normal(0, 0.2, (500, 1)))
    amounts = {"time": (1.0, time), "device_hours": (1.0, hours)}
    spent = Spending({name: draws * np.array(of) for name, of in amounts.items()})
    assert beating(spent, 0, np.array([True, True])).tolist() == [False, beats]
    assert not beating(spent, 0, np.array([True, False])).any()


def test_what_may_be_no_better_beats_nothing() -> None:
    rng = np.random.default_rng(1)
    time = np.exp(rng.normal(np.log([1.0, 0.8]), 0.2, (500, 2)))
    spent = Spending({"time": time, "device_hours": time})
    assert not beating(spent, 0, np.array([True, True])).any()


def test_the_closest_is_the_likeliest_then_the_least_over() -> None:
    choice = pick([0.0, 0.6, 0.7], time=70)
    assert (choice.index, choice.meets) == (2, False)
    assert pick([0.0, 0.0, 0.0], device_hours=0.1).index == 0
    # A wide interval that touches the limit brings a slower row no closer.
    assert pick([0.3, 0.0, 0.0], time=30).index == 2


def test_of_what_is_as_close_the_cheapest_is_shown(golden: Golden) -> None:
    spent = Spending({"time": np.array([61.0, 60.0, 80.0]), "device_hours": HOURS})
    asked, unlikely = Constraints(limits={"time": 30}), np.zeros(3)
    every = np.ones(3, dtype=bool)
    among = Allocations(
        spent=spent, probability=unlikely, is_eligible=every, is_measured=every
    )
    choice = best_within(among, asked)
    assert (choice.index, choice.meets) == (0, False)
    golden(choice.rule)


def test_only_what_is_eligible_is_chosen() -> None:
    found = pick([0.1, 0.95, 1.0], time=70, eligible=(True, False, True))
    assert (found.index, found.meets) == (2, True)
    none = pick([0.1, 0.95, 1.0], time=70, eligible=(True, False, False))
    assert (none.index, none.meets) == (0, False)


@pytest.mark.parametrize(
    ("paying", "rule"),
    [
        ([True], "there is no other GPU count to choose"),
        ([True, False], "more of them give less than 70% of the ideal gain"),
    ],
)
def test_no_doubling_is_praised_where_none_paid(paying: list[bool], rule: str) -> None:
    every, pays = np.ones(len(paying), dtype=bool), np.array(paying)
    choice = largest_paying(pays, every, Constraints(), "GPU")
    assert (choice.index, choice.rule) == (0, rule)


def test_without_limits_the_last_paying_row_is_chosen() -> None:
    pays = np.array([True, True, False])
    choice = largest_paying(pays, np.ones(3, dtype=bool), Constraints(), "GPU")
    assert (choice.index, choice.meets) == (1, True)
    meets = np.array([True, False, True])
    assert largest_paying(pays, meets, Constraints(), "GPU").meets is False

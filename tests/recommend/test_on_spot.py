"""The spot market beside the same nodes on demand, in one answer."""

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import Golden, refused
from test_by_device import question
from test_unlike_devices import cost, fact, quotes, unlike

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.answer.text import allocations
from scalelab.recommend.by_device import answer
from scalelab.recommend.question.objective import Constraints
from scalelab.site.spot import AskedSpot

pytestmark = pytest.mark.slow

ON_DEMAND = {"p2": 0.9}
Asked = Callable[..., Recommendation]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return sweep((1, 2, 4, 8, 16), per_node=1, seed=5, device_name="p2")


@pytest.fixture(scope="module")
def asked(frame: pd.DataFrame) -> Asked:
    def ask(
        rows: pd.DataFrame = frame,
        prices: dict[str, float] = ON_DEMAND,
        limits: dict[str, float] | None = None,
        listed: dict[str, Any] | None = None,
        **spot: Any,
    ) -> Recommendation:
        entry = {} if listed is None else {"spot": listed}
        return answer(
            replace(
                question(limits=Constraints(limits=limits or {})),
                quotes=quotes(prices, **entry),
                spot=AskedSpot.model_validate(spot) if spot else None,
            ),
            rows,
            {},
        )

    return ask


def of(found: Recommendation, device: str) -> dict[int, OutlookRow]:
    return {row.world_size: row for row in found.rows if row.device == device}


def said(found: Recommendation, *subjects: str) -> str:
    return " ".join(text for each in subjects for text in sentences(found)[each])


def test_both_stand_side_by_side(asked: Asked, golden: Golden) -> None:
    found = asked(price=0.3, interrupted_every="12h")
    usual, spot = of(found, "p2"), of(found, "p2 spot")
    assert [*usual] == [*spot]
    for size, row in usual.items():
        other = spot[size]
        assert other.is_interruptible
        assert not row.is_interruptible
        assert other.time_s.value > row.time_s.value
        assert cost(other) < cost(row)
        # what a step takes is the same
        assert astuple(other.step_time_s) == pytest.approx(astuple(row.step_time_s))
        assert other.throughput_samples_per_s == row.throughput_samples_per_s
    assert found.chosen.device == "p2 spot"
    golden(said(found, "use"))
    assert "on spot " in said(found, "choice")
    golden(said(found, "assumption"))


def test_without_a_rate_or_a_question_the_answer_is_that_on_demand(
    asked: Asked, golden: Golden
) -> None:
    bare, listed = asked(), asked(listed={"price": 0.3})
    assert listed.rows == bare.rows
    assert "(0.3 on the spot market)" in str(listed.price)
    golden(said(listed, "spot"))
    given = asked(listed={"price": 0.3, "interrupted_every": "12h"})
    assert given.rows == asked(price=0.3, interrupted_every="12h").rows


def test_more_interruptions_never_cost_less(asked: Asked) -> None:
    rows = [
        of(asked(price=0.3, interrupted_every=f"{hours}h"), "p2 spot")
        for hours in (200, 50, 12, 3)
    ]
    for size in rows[0]:
        ranked = [each[size] for each in rows if size in each]
        times = [row.time_s.value for row in ranked]
        costs = [cost(row) for row in ranked]
        assert times == sorted(times)
        assert costs == sorted(costs)


def test_prices_scale_costs_alone(asked: Asked) -> None:
    terms = {"interrupted_every": "12h", "wait": "5min"}
    once = asked(price=0.3, **terms)
    twice = asked(price=0.6, prices={"p2": 1.8}, **terms)
    for row, other in zip(once.rows, twice.rows, strict=True):
        assert cost(other) == pytest.approx(2 * cost(row))
        assert other.time_s == row.time_s
    assert once.chosen.allocation == twice.chosen.allocation


def test_limits_are_judged_with_interruptions(asked: Asked) -> None:
    terms = {"price": 0.3, "interrupted_every": "12h"}
    free = asked(**terms)
    size = free.chosen.world_size
    usual, spot = of(free, "p2")[size], of(free, "p2 spot")[size]
    between_s = (usual.time_s.hi + spot.time_s.lo) / 2
    found = asked(limits={"time": between_s}, **terms)
    chances = [of(found, name)[size].probability for name in ("p2", "p2 spot")]
    assert None not in chances
    assert chances[0] > chances[1]  # type: ignore[operator]
    hours = asked(limits={"device_hours": free.chosen.gpu_hours.value * 2}, **terms)
    assert hours.meets_constraints


def test_a_spot_price_above_that_on_demand_pays_nowhere(
    asked: Asked, golden: Golden
) -> None:
    found = asked(price=1.2, interrupted_every="50h")
    assert found.chosen.device == "p2"
    (kind,) = fact(found, "spot_pays").values["kinds"]
    assert kind["up_to"] is None
    golden(said(found, "spot"))


def test_where_many_nodes_are_interrupted_too_often_it_pays_up_to_fewer(
    asked: Asked,
) -> None:
    found = asked(price=0.3, interrupted_every="1h", checkpoint="90s")
    (kind,) = fact(found, "spot_pays").values["kinds"]
    assert kind["up_to"] in (1, 2, 4, 8)
    chances = dict(zip(kind["sizes"], kind["chances"], strict=True))
    assert all(chances[size] >= 0.9 for size in chances if size <= kind["up_to"])
    assert f"p2 up to {kind['up_to']} GPU" in said(found, "spot")


def test_a_job_that_would_not_end_is_not_compared(asked: Asked, golden: Golden) -> None:
    found = asked(price=0.3, interrupted_every="1min", checkpoint="10min")
    assert {row.device for row in found.rows} == {"p2"}
    golden(said(found, "spot"))
    golden(said(found, "spot"))
    mixed = asked(price=0.3, interrupted_every="5min", checkpoint="60s")
    (kind,) = fact(mixed, "spot_pays").values["kinds"]
    assert kind["never_ends"]
    golden(said(mixed, "spot"))


def test_it_says_what_it_hangs_on(asked: Asked, golden: Golden) -> None:
    found = asked(price=0.3, interrupted_every="12h", wait="20min")
    doubled = fact(found, "spot_hangs_on").values["doubled"]
    assert "interruptions" in doubled
    beside = fact(found, "spot_beside").values
    for grown in doubled.values():
        for name, amount in grown.items():
            assert amount["value"] >= 1.05 * beside["spot"][name]["value"]
    calm = asked(price=0.3, interrupted_every="900000h")
    golden(said(calm, "spot"))


def test_without_prices_both_are_compared_by_time(asked: Asked, golden: Golden) -> None:
    found = asked(prices={}, interrupted_every="12h")
    assert found.chosen.device == "p2"
    assert not any(each.kind == "spot_pays" for each in found.facts)
    golden(said(found, "assumption"))
    with refused("spot_not_compared", "{'price': "):
        asked(limits={"money": 20.0}, interrupted_every="12h")
    with refused("spot_not_compared", "{'interrupted_every': "):
        asked(price=0.3)


def test_what_the_run_lost_says_how_often(
    asked: Asked, frame: pd.DataFrame, golden: Golden
) -> None:
    start = pd.Timestamp("2026-11-01T00:00:00Z")
    timed = frame.assign(started_at=start, ended_at=start + pd.Timedelta(hours=2))
    held = 2.0 * frame["num_nodes"].sum()
    none = asked(timed, price=0.3)
    most = f"at most {3 / held:.2g} an hour (95%)"
    golden(said(none, "spot"))
    assert most in said(none, "spot")
    lost = timed.iloc[:9].assign(outcome="preempted")
    many = asked(pd.concat([timed, lost], ignore_index=True), price=0.3)
    assert "9 interruptions in " in said(many, "spot")
    for size, row in of(none, "p2 spot").items():
        assert row.time_s.value < of(many, "p2 spot")[size].time_s.value


def test_terms_that_a_list_leaves_open_are_no_error(
    asked: Asked, golden: Golden
) -> None:
    found = asked(listed={"price": 0.3, "wait": "5min"})
    assert found.rows == asked().rows
    golden(said(found, "spot"))


def test_a_limit_on_money_is_judged_on_demand_where_a_list_has_no_spot_price(
    asked: Asked, golden: Golden
) -> None:
    found = asked(listed={"interrupted_every": "12h"}, limits={"money": 1e6})
    assert found.rows == asked(limits={"money": 1e6}).rows
    golden(said(found, "spot"))


def test_several_devices_have_terms_of_their_own() -> None:
    prices = {"c4": 0.39, "p2": 0.9}
    entries = [
        *quotes({"c4": 0.39}, spot={"price": 0.12, "interrupted_every": "30h"}),
        *quotes({"p2": 0.9}, spot={"price": 0.32, "interrupted_every": "3h"}),
    ]
    assert {each.entry.device for each in entries} == {*prices}
    found = answer(question(quotes=tuple(entries)), unlike(), {})
    devices = [*dict.fromkeys(row.device for row in found.rows)]
    assert devices == ["c4", "c4 spot", "p2", "p2 spot"]
    text = said(found, "spot")
    assert "Spot on c4: a node is interrupted once in 30 h" in text
    assert "Spot on p2: a node is interrupted once in 3 h" in text
    chances = fact(found, "against_devices").values["chances"]
    assert {*chances["faster"]} == {*devices} - {found.chosen.device}


def test_histories_of_several_devices_give_their_costs_a_spread(
    tmp_path: Path, golden: Golden
) -> None:
    rng = np.random.default_rng(2)
    hours = pd.date_range("2026-09-01", periods=1500, freq="h", tz="UTC")
    walk = np.exp(np.cumsum(rng.normal(0, 0.08, len(hours))))
    files, entries = {}, []
    for name, (usual, usd) in {"c4": (0.39, 0.12), "p2": (0.9, 0.3)}.items():
        swing = walk if name == "p2" else np.ones(len(hours))
        files[name] = tmp_path / f"{name}.csv"
        table = pd.DataFrame({"time": hours, "usd": usd * swing / swing.mean()})
        table.to_csv(files[name], index=False)
        terms = {"history": str(files[name]), "interrupted_every": "900000h"}
        entries += quotes({name: usual}, spot=terms)
    found = answer(question(quotes=tuple(entries)), unlike(), {})
    spread = {}
    for device in ("c4", "c4 spot", "p2", "p2 spot"):
        (base,) = (r for r in found.rows if r.device == device and r.is_baseline)
        assert base.cost is not None
        spread[device] = base.cost.hi / base.cost.lo
    assert spread["c4 spot"] == pytest.approx(spread["c4"], rel=0.05)
    assert spread["p2 spot"] > 1.2 * spread["p2"]
    steady, swinging = (
        each.values for each in found.facts if each.kind == "spot_history"
    )
    assert steady["variation"] == pytest.approx(0.0, abs=1e-3)
    assert swinging["variation"] > 0.1
    golden(said(found, "spot"))


def test_draws_of_both_belong_together(asked: Asked) -> None:
    """Nearly uninterrupted, spot is never surely faster nor much slower."""
    found = asked(price=0.9, interrupted_every="900000h", checkpoint_every="10000h")
    for size, row in of(found, "p2").items():
        other = of(found, "p2 spot")[size]
        assert other.time_s.value == pytest.approx(row.time_s.value, rel=1e-3)
    assert np.isclose(cost(found.chosen), found.chosen.gpu_hours.value * 0.9)


def test_the_table_of_one_device_tells_the_markets_apart(asked: Asked) -> None:
    columns = allocations(asked(price=0.3, interrupted_every="12h"))
    assert columns["device"][0] == "market"
    assert {*columns["device"][1:]} == {"on demand", "spot"}
    both = answer(
        question(
            quotes=quotes({"c4": 0.39, "p2": 0.9}, spot=0.3),
            spot=AskedSpot.model_validate({"interrupted_every": "12h"}),
        ),
        unlike(),
        {},
    )
    columns = allocations(both)
    assert columns["device"][0] == "device"
    assert {*columns["device"][1:]} == {"c4", "c4 spot", "p2", "p2 spot"}

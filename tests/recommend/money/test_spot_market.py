"""Terms of interruptible nodes: joined from several places, seen, or assumed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sentences import Golden, refused

from scalelab.recommend.money.prices import Price
from scalelab.recommend.money.spot import SeenInterruptions, SpotMarket
from scalelab.site.spot import Spot, joined_terms

NONE_SEEN = SeenInterruptions(count=0, node_hours=0.0)
LEVELS = (np.arange(400) + 0.5) / 400


def terms(**said: object) -> Spot:
    return Spot.model_validate({"interrupted_every": "6h", **said})


def market(said: Spot, price: Price | None = None, **known: object) -> SpotMarket:
    given = {"seen": NONE_SEEN, "start_up_s": 0.0, **known}
    return SpotMarket.of(said, price, **given)  # type: ignore[arg-type]


def test_each_key_of_a_later_place_counts_for_more() -> None:
    site = Spot.model_validate({"price": 1, "wait": "10min", "checkpoint": "5s"})
    listed, asked = Spot.model_validate(0.5), Spot.model_validate({"wait": "1min"})
    found = joined_terms(site, None, listed, asked)
    assert found is not None
    assert (found.price, found.wait, found.checkpoint) == (0.5, 60.0, 5.0)
    assert joined_terms(None, None) is None


def test_what_nobody_says_is_measured_or_assumed() -> None:
    found = market(terms(wait="2min"), start_up_s=12.0)
    assert found.interruptions.restart_s == found.terms["restart_s"] == 12.0
    assert found.terms["sources"] == {
        "checkpoint": "assumed",
        "restart": "measured",
        "wait": "as given",
    }
    assert market(terms()).terms["sources"]["restart"] == "assumed"
    assert found.interruptions.per_second == pytest.approx(np.full(400, 1 / 21600))
    assert found.price is None


def test_no_interruption_in_some_node_hours_says_at_most_three_of_them() -> None:
    seen = SeenInterruptions(count=0, node_hours=24.0)
    assert seen.per_hour(np.array([0.95])) == pytest.approx(3 / 24, rel=0.01)
    found = market(Spot(), seen=seen)
    assert found.terms["at_most_per_hour"] == pytest.approx(3 / 24, rel=0.01)
    per_hour = 3600 * found.interruptions.per_second
    assert np.mean(per_hour <= 3 / 24) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_rates_that_were_seen_hold_the_true_one(rate: float) -> None:
    rng, inside = np.random.default_rng(1), []
    for count in rng.poisson(40.0 * rate, size=300):
        seen = SeenInterruptions(count=int(count), node_hours=40.0)
        lo, hi = seen.per_hour(np.array([0.1, 0.9]))
        inside.append(lo <= rate <= hi)
    assert 0.7 < np.mean(inside) < 0.95


def test_a_run_tells_what_its_nodes_lost() -> None:
    start = pd.Timestamp("2026-11-01T00:00:00Z")
    frame = pd.DataFrame(
        {
            "outcome": ["completed", "preempted", "node_fail", "failed"],
            "started_at": [start, start, start, pd.NaT],
            "ended_at": [start + pd.Timedelta(hours=h) for h in (1, 2, 3)] + [pd.NaT],
            "num_nodes": [1, 2, 4, 8],
        }
    )
    assert SeenInterruptions.of(frame) == SeenInterruptions(count=2, node_hours=17.0)
    bare = SeenInterruptions.of(frame.drop(columns="ended_at"))
    assert bare == SeenInterruptions(count=2, node_hours=0.0)


def test_the_price_is_charged_as_on_demand_and_in_the_same_currency() -> None:
    usual = Price(amount=9.0, currency="eur", per="node_hour", said_by="by a list")
    found = market(terms(price=4), usual).price
    assert found is not None
    assert (found.amount, found.currency, found.per) == (4.0, "eur", "node_hour")
    assert found.said_by == "by a list"
    asked = market(terms(price="4eur"), usual, is_asked=True).price
    assert asked is not None
    assert asked.said_by == "as given"
    with refused("spot_in_other_currency", "in usd"):
        market(terms(price="4usd"), usual)


def test_a_history_takes_the_place_of_the_price(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "h.csv"
    path.write_text("time,eur\n2026-11-01,2\n2026-11-02,4\n2026-11-03,4\n")
    usual = Price(amount=9.0, currency="eur")
    found = market(terms(price="1eur", history=str(path)), usual).price
    assert found is not None
    assert found.amount == 3.0
    golden(found.said_by)
    hour, nodes = np.full((400, 1), 3600.0), np.array([2])
    per_hour = found.per_hour(nodes, nodes, hour)
    assert sorted({*per_hour.ravel().round(6)})[0] == 4.0
    assert per_hour.max() == pytest.approx(8.0)

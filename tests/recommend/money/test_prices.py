"""Prices: who says them, of which devices, and what they charge."""

import doctest
from datetime import date
from typing import Any

import numpy as np
import pytest
from sentences import Golden, refused

from scalelab.kinds.resources import MONEY
from scalelab.recommend.money import prices
from scalelab.recommend.money.prices import (
    FILE,
    GIVEN,
    TABLE,
    Price,
    Quote,
    check_prices,
    price_of,
)
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints
from scalelab.site.choice import site_of
from scalelab.site.prices import PriceEntry
from scalelab.site.profile import Site

SIZES, NODES = np.array([1, 4, 6]), np.array([1, 1, 2])
C4 = DeviceKind(device_type="cpu", node_group="c4", label="c4")
P2 = DeviceKind(
    device_type="cuda", device_name="NVIDIA K80", label="p2", node_group="p2"
)


def site(**settings: object) -> Site:
    return site_of(
        {"name": "alpine", "device_type": "cpu", "gpus_per_node": 4, **settings}
    )


def quote(on_demand: Any, rank: int = GIVEN, **said: Any) -> Quote:
    entry = PriceEntry(on_demand=on_demand, **said)
    return Quote(entry=entry, rank=rank, said_by=f"by {rank}")


def price(*quotes: Quote, of: DeviceKind = C4, where: Site | None = None) -> Price:
    found = price_of(of, quotes, where)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "said", "per_hour"),
    [
        ({"price_per_gpu_hour": 2}, None, [2, 8, 12]),
        ({"price_per_gpu_hour": 2, "exclusive": True}, None, [8, 8, 16]),
        ({"price_per_node_hour": 9}, None, [9, 9, 18]),
        ({"price_per_node_hour": 9}, {"on_demand": 3.0}, [3, 12, 18]),
        ({"exclusive": True}, {"on_demand": 3.0}, [12, 12, 24]),
        ({"exclusive": True}, {"on_demand": 3.0, "per": "core_hour"}, [12, 12, 24]),
        ({"exclusive": True}, {"on_demand": 3.0, "per": "node_hour"}, [3, 3, 6]),
    ],
)
def test_what_is_charged_per_hour(
    settings: dict[str, Any], said: dict[str, Any] | None, per_hour: list[int]
) -> None:
    place = site(**settings)
    quotes = [quote(**said)] if said else []
    whole = 4 if place.exclusive else None
    limits = Constraints(price=price(*quotes, where=place), devices_on_node=whole)
    spent = limits.spending(np.full(3, 3600.0), SIZES, NODES)
    assert spent.of(MONEY).tolist() == per_hour
    assert spent.gpu_hours.tolist() == ([4, 4, 8] if whole else [1, 4, 6])


def test_cores_are_those_that_a_job_asks_for() -> None:
    place = site_of(
        {"scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 4}
        | {"cores_per_node": 32, "python": "python3"}
    )
    found = price(quote(0.5, per="core_hour"), of=P2, where=place)
    assert found.per_hour(NODES, SIZES, np.ones(3)).tolist() == [16, 16, 32]
    with refused("cores_unknown", "p2", "0.5"):
        price(quote(0.5, per="core_hour"), of=P2)


def test_a_least_time_is_charged() -> None:
    limits = Constraints(price=price(quote(6.0, minimum_s=600)))
    spent = limits.spending(np.array([60.0, 600.0, 3600.0]), SIZES, NODES)
    assert spent.of(MONEY).tolist() == [1, 4, 36]


@pytest.mark.parametrize("currency", ["usd", "eur", "credits"])
def test_prices_scale_costs(currency: str) -> None:
    one, three = (
        Constraints(price=price(quote(amount, currency=currency)))
        .spending(np.array([60.0, 600.0, 3600.0]), SIZES, NODES)
        .of(MONEY)
        for amount in (1.0, 3.0)
    )
    assert three.tolist() == (3 * one).tolist()


def test_what_is_asked_counts_for_more_than_a_list_a_site_and_a_table(
    golden: Golden,
) -> None:
    said = [quote(rank, rank) for rank in (GIVEN, FILE)]
    table, place = quote(9, TABLE), site(price_per_gpu_hour=5)
    assert price(*said, table, where=place).amount == GIVEN
    assert price(*said[1:], table, where=place).amount == FILE
    assert price(table, where=place).amount == 5
    golden(price(table, where=place).said_by)
    assert price(table).amount == 9
    assert price_of(C4, [], None) is None
    assert price_of(C4, [], site()) is None


def test_the_entry_that_names_a_device_most_closely_counts() -> None:
    other = DeviceKind(device_name="NVIDIA A100-SXM4-80GB", device_type="cuda")
    listed = [
        quote(1.0, FILE),
        quote(2.0, FILE, device="A100"),
        quote(3.0, FILE, device="a100 80gb"),
        quote(4.0, FILE, device="H100"),
    ]
    assert price(*listed, of=other).amount == 3.0
    assert price(*listed, of=C4).amount == 1.0
    assert price_of(C4, listed[1:], None) is None
    with refused("several_prices", "c4", "1 and 5", "by 2"):
        price(listed[0], quote(5.0, FILE))


def test_the_examples_hold() -> None:
    assert doctest.testmod(prices).failed == 0


def test_a_name_without_a_letter_names_nothing() -> None:
    assert price_of(C4, [quote(2.0, device="???")], None) is None


def test_currencies_are_not_mixed() -> None:
    said = {"c4": price(quote("2eur")), "p2": price(quote("$2"))}
    with refused("several_currencies", "c4 in eur", "p2 in usd", "price="):
        check_prices(said, [], [C4, P2], "")
    with refused("several_currencies", "c4 in eur", "limit in usd"):
        check_prices({"c4": said["c4"]}, [], [C4], "usd")
    check_prices({"c4": said["c4"]}, [], [C4], "")


def test_a_price_of_what_was_not_measured_is_refused() -> None:
    with refused("device_not_measured", "c5", "c4, p2"):
        check_prices({}, [quote(2, device="c5")], [C4, P2], "")
    check_prices({}, [quote(2, FILE, device="c5")], [C4, P2], "")


def test_it_says_what_is_charged_and_who_says_so(golden: Golden) -> None:
    place = site(price_per_gpu_hour=2)
    limits = Constraints(price=price(where=place), devices_on_node=4)
    golden(limits.charges_in_words("core-h"))
    assert Constraints().charges_in_words("core-h") == ""
    node = price(quote("9eur", spot=4, per="node_hour", minimum_s=60))
    golden(Constraints(price=node).charges_in_words("GPU-h", "c4"))


@pytest.mark.parametrize(
    ("day", "days"),
    [(date(2026, 11, 1), None), (date(2026, 8, 1), 115), (date(2027, 1, 1), None)],
)
def test_a_price_of_long_ago_is_old(day: date, days: int | None) -> None:
    found = price(quote(2, FILE, date=day))
    assert found.age_days(date(2026, 11, 24)) == days
    assert found.age_days(None) is None

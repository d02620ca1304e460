from typing import Any

import numpy as np
import pytest

from scalelab.kinds.resources import MONEY
from scalelab.recommend.question.objective import Constraints, Price
from scalelab.site.choice import site_of
from scalelab.site.profile import Site

SIZES, NODES = np.array([1, 4, 6]), np.array([1, 1, 2])


def site(**settings: object) -> Site:
    return site_of(
        {"name": "alpine", "device_type": "cpu", "gpus_per_node": 4, **settings}
    )


@pytest.mark.parametrize(
    ("settings", "given", "per_hour"),
    [
        ({"price_per_gpu_hour": 2}, None, [2, 8, 12]),
        ({"price_per_gpu_hour": 2, "exclusive": True}, None, [8, 8, 16]),
        ({"price_per_node_hour": 9}, None, [9, 9, 18]),
        ({"price_per_node_hour": 9}, 3.0, [3, 12, 18]),
        ({"exclusive": True}, 3.0, [12, 12, 24]),
    ],
)
def test_what_is_charged_per_hour(
    settings: dict[str, Any], given: float | None, per_hour: list[int]
) -> None:
    place = site(**settings)
    price = Price.of(place, given)
    assert price is not None
    whole = 4 if place.exclusive else None
    limits = Constraints(price=price, devices_on_node=whole)
    spent = limits.spending(np.full(3, 3600.0), SIZES, NODES)
    assert spent.of(MONEY).tolist() == per_hour
    assert spent.gpu_hours.tolist() == ([4, 4, 8] if whole else [1, 4, 6])
    whose = "as given" if given else "by the profile of site alpine"
    assert price.said_by == whose


def test_nobody_says_a_price() -> None:
    assert Price.of(None) is None
    assert Price.of(site()) is None
    assert Price.of(None, 2.0) == Price(usd=2.0)


def test_it_says_what_is_charged_and_who_says_so() -> None:
    limits = Constraints(price=Price.of(site(price_per_gpu_hour=2)), devices_on_node=4)
    assert limits.charges_in_words("core-h") == (
        "Price: 2 usd per core-h, by the profile of site alpine. core-h count whole "
        "nodes, 4 devices each."
    )
    assert Constraints().charges_in_words("core-h") is None
    node = Price(usd=9, per_node=True)
    assert node.in_words("GPU-h") == "Price: 9 usd per node-hour, as given."

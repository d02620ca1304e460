from typing import Any

import numpy as np
import pytest

from scalelab.recommend.question.run_site import Price
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
    price = Price.of(site(**settings), given)
    assert price is not None
    assert price.per_hour(SIZES, NODES).tolist() == per_hour
    whose = "as given" if given else "by the profile of site alpine"
    assert price.said_by == whose


def test_nobody_says_a_price() -> None:
    assert Price.of(None) is None
    assert Price.of(site()) is None
    assert Price.of(None, 2.0) == Price(usd=2.0)


def test_it_says_what_is_charged_and_who_says_so() -> None:
    price = Price.of(site(price_per_gpu_hour=2, exclusive=True))
    assert price is not None
    assert price.in_words("core-h") == (
        "Price: 2 usd per core-h of whole nodes, 4 each, by the profile of site alpine."
    )
    node = Price(usd=9, per_node=True)
    assert node.in_words("GPU-h") == "Price: 9 usd per node-hour, as given."

import doctest
import re
from typing import Any

import numpy as np
import pytest

from scalelab.errors import SpecError
from scalelab.kinds import resources
from scalelab.kinds.resources import (
    PRICE_PER_HOUR,
    RESOURCES,
    Resource,
    Usage,
    read_limits,
)
from scalelab.testing.resources import ResourceContract


class TestEveryResource(ResourceContract):
    @pytest.fixture(params=RESOURCES.built_in, ids=lambda row: row.name)
    def row(self, request: pytest.FixtureRequest) -> Resource:
        found: Resource = request.param
        return found


def test_amounts_follow_from_time_and_devices() -> None:
    usage = Usage(
        time_s=np.array([[3600.0, 7200.0]]),
        world_size=np.array([4, 1]),
        num_nodes=np.array([2, 1]),
        rates={PRICE_PER_HOUR: np.array([8.0, 2.0])},
    )
    found = {row.field: row.amount(usage) for row in RESOURCES.built_in}
    assert found["time_s"].tolist() == [[3600.0, 7200.0]]
    assert found["gpu_hours"].tolist() == [[4.0, 2.0]]
    assert found["cost_usd"].tolist() == [[8.0, 4.0]]


def test_money_is_not_known_without_a_price() -> None:
    ones = np.ones(1)
    usage = Usage(time_s=ones, world_size=ones, num_nodes=ones)
    assert resources.MONEY.amount(usage) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_tmie": "4h"}, "max_tmie limits no resource. Did you mean 'max_time'?"),
        (
            {"max_time": 4},
            "max_time=4 has no unit. Write max_time='4h' or max_time_s=4.",
        ),
        ({"max_time": "4h", "max_time_s": 9}, "max_time_s=9: time is limited twice."),
        ({"max_cost": "20xyz"}, "max_cost: the currency 'xyz' is not known."),
        (
            {"max_gpu_hours": [1]},
            "max_gpu_hours=[1] is neither text nor a number. Write "
            "max_gpu_hours='50gpu-h' or max_gpu_hours=20.",
        ),
        (
            {"max_time": True},
            "max_time=True is neither text nor a number. Write max_time='4h' or "
            "max_time_s=20.",
        ),
    ],
)
def test_wrong_limits_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        read_limits(given)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"max_gpu_hours": "100gpu-h"}, {"device_hours": 100}),
        ({"max_gpu_hours": "500"}, {"device_hours": 500}),
        ({"max_gpu_hours": np.int64(5)}, {"device_hours": 5}),
        ({"max_cost": "20"}, {"money": 20}),
        ({"max_time": "6days"}, {"time": 6 * 86400}),
        ({"max_time_s": 9.5, "max_cost": None}, {"time": 9.5}),
        ({"deadline": "4h", "budget": "20usd"}, {"time": 14400, "money": 20}),
    ],
)
def test_limits_are_read(given: dict[str, Any], limits: dict[str, float]) -> None:
    assert read_limits(given) == limits


def test_the_examples_hold() -> None:
    assert doctest.testmod(resources).failed == 0

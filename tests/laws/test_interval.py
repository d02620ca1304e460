import numpy as np
import pytest

from scalelab.laws.interval import central, shortest_positive


def test_central_interval_of_known_draws() -> None:
    lo, hi = central(np.arange(101.0), 0.8)
    assert (lo, hi) == pytest.approx((10.0, 90.0))


def test_the_shortest_interval_of_a_skewed_quantity_starts_at_zero(
    rng: np.random.Generator,
) -> None:
    lo, hi = shortest_positive(rng.exponential(size=4000), 0.8)
    assert lo == 0.0
    assert hi == pytest.approx(-np.log(0.2), rel=0.1)


def test_the_shortest_interval_of_a_sharp_quantity_does_not(
    rng: np.random.Generator,
) -> None:
    lo, hi = shortest_positive(rng.normal(10, 1, 4000), 0.8)
    assert lo == pytest.approx(10 - 1.28, abs=0.2)
    assert hi == pytest.approx(10 + 1.28, abs=0.2)

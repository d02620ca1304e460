import numpy as np
import pytest

from scalelab.laws.interval import (
    NUM_DRAWS,
    NUM_WALKERS,
    central,
    sample,
    shortest_positive,
)


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


def test_draws_follow_a_narrow_ridge(rng: np.random.Generator) -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        # sum known to 0.01, difference to 1: a ridge 100 times longer than wide
        return -0.5 * ((x.sum(axis=1) / 0.01) ** 2 + (x[:, 0] - x[:, 1]) ** 2)

    start = rng.normal(0, 0.1, (NUM_WALKERS, 2))
    draws = sample(log_density, start, 400)
    assert draws.shape == (NUM_DRAWS, 2)
    assert draws.sum(axis=1).std() == pytest.approx(0.01, rel=0.3)
    assert (draws[:, 0] - draws[:, 1]).std() == pytest.approx(1.0, rel=0.3)


def test_draws_are_the_same_every_time(rng: np.random.Generator) -> None:
    start = rng.normal(size=(NUM_WALKERS, 2))

    def log_density(x: np.ndarray) -> np.ndarray:
        return -0.5 * (x**2).sum(axis=1)

    first, again = (sample(log_density, start, 50) for _ in range(2))
    assert np.array_equal(first, again)

import numpy as np
import pytest

from scalelab.recommend.prediction.knee import last_paying, marginal_return

SIZES = np.array([1.0, 2.0, 4.0, 8.0])


def test_marginal_return_of_ideal_and_of_useless_doublings() -> None:
    times = np.array([8.0, 4.0, 4.0, 3.0])
    expected = [1.0, 0.0, 1 / 3]
    assert marginal_return(times, SIZES) == pytest.approx(expected)


def test_marginal_return_counts_per_device_added() -> None:
    # 3 times the devices, 2 times as fast: half of the two added paid
    assert marginal_return(np.array([6.0, 3.0]), np.array([1.0, 3.0])) == 0.5


def test_the_last_paying_size_is_before_the_first_that_fails() -> None:
    times = np.array([[8, 4, 4, 2], [8, 4, 2, 1], [8, 7, 3, 1]], dtype=float)
    assert last_paying(times, SIZES, 0.5).tolist() == [1, 3, 0]


def test_a_stricter_return_moves_the_knee_down(rng: np.random.Generator) -> None:
    times = 1 / SIZES + 0.05 * np.log2(SIZES) + 0.001 * rng.random((50, 4))
    strict, lax = (last_paying(times, SIZES, least) for least in (0.9, 0.3))
    assert (strict <= lax).all()

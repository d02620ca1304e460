import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from scalelab.laws.step_time.mixture import Mixture

TWO = Mixture(
    weights=np.array([[0.7], [0.3]]),
    means=np.array([[0.0, 0.0], [1.0, 0.01]]),
    variances=np.array([[0.01, 0.04], [0.09, 0.04]]),
)


def draws(column: int, rng: np.random.Generator) -> np.ndarray:
    slow = rng.random(200_000) < 0.3
    part = slow.astype(int)
    normals = rng.standard_normal(len(slow))
    return TWO.means[part, column] + normals * np.sqrt(TWO.variances[part, column])


@pytest.mark.parametrize("column", [0, 1])
def test_moments_and_quantiles_are_those_of_draws(
    column: int, rng: np.random.Generator
) -> None:
    drawn = draws(column, rng)
    assert TWO.mean[column] == pytest.approx(drawn.mean(), abs=0.01)
    assert TWO.variance[column] == pytest.approx(drawn.var(), rel=0.02)
    for level in (0.1, 0.5, 0.9):
        expected = np.quantile(drawn, level)
        assert TWO.quantile(level)[column] == pytest.approx(expected, abs=0.02)


def test_one_part_is_a_normal() -> None:
    one = Mixture(
        weights=np.ones((1, 1)), means=np.ones((1, 3)), variances=np.full((1, 3), 0.04)
    )
    assert one.quantile(0.5) == pytest.approx(np.ones(3))
    assert one.least_relative_error() == pytest.approx(np.full(3, 0.96))


@pytest.mark.parametrize("column", [0, 1])
def test_no_other_answer_has_a_smaller_expected_relative_error(
    column: int, rng: np.random.Generator
) -> None:
    times = np.exp(draws(column, rng))
    best = minimize_scalar(
        lambda log: np.abs(np.exp(log) / times - 1).mean(),
        bounds=(-1.0, 1.5),
        method="bounded",
    )
    answer = TWO.least_relative_error()[column]
    assert np.abs(np.exp(answer) / times - 1).mean() <= best.fun * 1.005


def test_a_moved_mixture_is_wider_by_what_was_added() -> None:
    moved = TWO.moved(np.array([1.0, 2.0]), 0.5)
    assert moved.mean - TWO.mean == pytest.approx([1.0, 2.0])
    assert moved.variance - TWO.variance == pytest.approx([0.5, 0.5])

import numpy as np
import pytest

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


def test_ranked_draws_have_the_quantiles_and_keep_their_order(
    rng: np.random.Generator,
) -> None:
    common = rng.standard_normal((400, 1))
    drawn = common + 0.1 * rng.standard_normal((400, 2))
    ranked = TWO.ranked(drawn)
    assert (ranked.argsort(axis=0) == drawn.argsort(axis=0)).all()
    for level in (0.1, 0.5, 0.9):
        expected = TWO.quantile(level)
        assert np.quantile(ranked, level, axis=0) == pytest.approx(expected, abs=0.02)
    assert np.corrcoef(ranked.T)[0, 1] > 0.8


@pytest.mark.parametrize("freedom", [2.5, 5.0, 40.0])
def test_one_run_scatters_like_students_t(
    freedom: float, rng: np.random.Generator
) -> None:
    scale = np.array([0.05, 0.5])
    run = TWO.of_one_run(scale, np.full(2, freedom))
    for column in (0, 1):
        luck = scale[column] * rng.standard_t(freedom, 200_000)
        drawn = draws(column, rng) + luck
        for level in (0.1, 0.5, 0.9):
            expected = np.quantile(drawn, level)
            found = run.quantile(level)[column]
            assert found == pytest.approx(expected, abs=0.06 * drawn.std())


def test_a_moved_mixture_is_wider_by_what_was_added() -> None:
    moved = TWO.moved(np.array([1.0, 2.0]), 0.5)
    assert moved.mean - TWO.mean == pytest.approx([1.0, 2.0])
    assert moved.variance - TWO.variance == pytest.approx([0.5, 0.5])

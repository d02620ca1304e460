import numpy as np
import pytest

from scalelab.laws.convergence.importance import draw
from scalelab.laws.interval import NUM_DRAWS


def wide(
    rng: np.random.Generator, dimension: int, count: int = 2000, scale: float = 4.0
) -> tuple[np.ndarray, np.ndarray]:
    score = rng.standard_normal((count, dimension))
    logs = -0.5 * (score**2).sum(axis=1) - dimension * np.log(scale)
    return scale * score, logs


def test_moments_of_a_correlated_normal_come_back(rng: np.random.Generator) -> None:
    mean = np.array([1.0, -2.0, 0.5])
    root = np.array([[0.5, 0, 0], [0.45, 0.1, 0], [0, -0.3, 0.2]])
    inverse = np.linalg.inv(root @ root.T)

    def log_density(x: np.ndarray) -> np.ndarray:
        return -0.5 * np.einsum("ni,ij,nj->n", x - mean, inverse, x - mean)

    found = draw(log_density, *wide(rng, 3), rng)
    assert found.shape == (NUM_DRAWS, 3)
    assert found.mean(axis=0) == pytest.approx(mean, abs=0.05)
    assert np.cov(found.T) == pytest.approx(root @ root.T, abs=0.05)
    assert (np.diff(found[:, 0]) >= 0).all()


def test_both_of_two_modes_are_kept(rng: np.random.Generator) -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        left, right = ((x[:, 0] + at) ** 2 / 0.5 for at in (-2.0, 2.0))
        return np.logaddexp(np.log(0.3) - left, np.log(0.7) - right)

    found = draw(log_density, *wide(rng, 1), rng)[:, 0]
    assert (found > 0).mean() == pytest.approx(0.3, abs=0.06)


def test_a_density_far_narrower_than_the_first_draws_is_found(
    rng: np.random.Generator,
) -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        return -0.5 * ((x - 3.0) ** 2).sum(axis=1) / 0.01**2

    found = draw(log_density, *wide(rng, 4), rng)
    assert found.mean(axis=0) == pytest.approx(3.0, abs=0.003)
    assert found.std(axis=0) == pytest.approx(0.01, rel=0.2)


def test_equal_states_of_the_generator_give_equal_draws() -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        return -(x**2).sum(axis=1)

    one, two = (
        draw(log_density, *wide(rng, 2), rng)
        for rng in (np.random.default_rng(4), np.random.default_rng(4))
    )
    assert np.array_equal(one, two)

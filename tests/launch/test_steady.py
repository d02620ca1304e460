import numpy as np
import pytest

from scalelab.launch.steady import (
    interval_columns,
    is_steady,
    mean_interval,
    unlike_halves,
)


def autocorrelated(
    rng: np.random.Generator, num_steps: int, correlation: float
) -> np.ndarray:
    noise = rng.normal(size=num_steps)
    series = np.empty(num_steps)
    series[0] = noise[0]
    for step in range(1, num_steps):
        series[step] = correlation * series[step - 1] + noise[step]
    return 1.0 + 0.05 * series * np.sqrt(1 - correlation**2)


@pytest.mark.parametrize(
    ("num_steps", "correlation", "least"),
    [(50, 0.0, 0.91), (200, 0.0, 0.92), (50, 0.5, 0.85), (200, 0.5, 0.88)],
)
def test_interval_covers_the_true_mean(
    rng: np.random.Generator, num_steps: int, correlation: float, least: float
) -> None:
    hits = 0
    for _ in range(300):
        lo, hi = mean_interval(autocorrelated(rng, num_steps, correlation))
        hits += lo <= 1.0 <= hi
    assert least <= hits / 300 <= 0.995


def test_interval_shrinks_with_the_root_of_the_steps(rng: np.random.Generator) -> None:
    def width(num_steps: int) -> float:
        lo, hi = mean_interval(rng.normal(1.0, 0.1, size=num_steps))
        return hi - lo

    short = np.mean([width(100) for _ in range(30)])
    long = np.mean([width(400) for _ in range(30)])
    assert short / long == pytest.approx(2.0, rel=0.25)


def test_interval_scales_with_the_unit(rng: np.random.Generator) -> None:
    series = rng.normal(1.0, 0.1, size=60)
    np.testing.assert_allclose(
        mean_interval(1e3 * series), 1e3 * np.array(mean_interval(series))
    )


def test_constant_series_has_no_width() -> None:
    assert mean_interval(np.full(30, 0.25)) == pytest.approx((0.25, 0.25))


def test_too_few_steps_have_no_interval() -> None:
    assert np.isnan(mean_interval(np.ones(3))).all()


def test_steady_needs_steps_and_precision(rng: np.random.Generator) -> None:
    series = rng.normal(1.0, 0.05, size=400)
    assert not is_steady(series[:19], 10.0)
    assert not is_steady(series[:20], 0.001)
    assert is_steady(series, 0.02)


def test_halves_of_a_steady_series_agree(rng: np.random.Generator) -> None:
    found = [
        unlike_halves(autocorrelated(rng, 50, correlation))
        for correlation in (0.0, 0.5)
        for _ in range(150)
    ]
    assert sum(each is not None for each in found) < 15


@pytest.mark.parametrize("later", [0.5, 0.9, 1.1, 2.0])
def test_halves_that_differ_beyond_their_scatter_are_told(
    rng: np.random.Generator, later: float
) -> None:
    series = rng.normal(1.0, 0.02, size=50)
    series[25:] *= later
    assert unlike_halves(series) == pytest.approx((1.0, later), rel=0.02)
    assert unlike_halves(series[:25]) is None
    assert unlike_halves(series[22:29]) is None  # too few to tell
    assert interval_columns(series[:25], float(series[:25].mean()))["settled"]
    columns = interval_columns(series, float(series.mean()))
    assert not columns["settled"]
    assert columns["step_time_s"] == pytest.approx(later, rel=0.02)
    assert columns["step_time_bound"] == ("at_most" if later < 1 else "at_least")
    # One more such change would lead there.
    assert columns["step_time_lo_s"] <= min(later, later**2) * 1.05
    assert columns["step_time_hi_s"] >= max(later, later**2) * 0.95

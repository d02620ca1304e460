import numpy as np
import pytest

from scalelab.training.probes.noise_scale import NoiseScaleAverage, gradient_moments


@pytest.mark.slow
def test_moments_are_unbiased_for_known_gradients(rng: np.random.Generator) -> None:
    """Gradients of one sample are g + noise, with |g|^2 and tr(Sigma) known."""
    g = np.array([1.0, -2.0, 0.5])
    deviations = np.array([2.0, 1.0, 3.0])
    estimates = []
    for _ in range(4000):
        samples = g + rng.normal(size=(8, 3)) * deviations
        small = np.mean([np.sum(s.mean(axis=0) ** 2) for s in samples.reshape(4, 2, 3)])
        big = np.sum(samples.mean(axis=0) ** 2)
        estimates.append(
            gradient_moments(
                small_batch=2,
                big_batch=8,
                small_square_norm=small,
                big_square_norm=big,
            )
        )
    square_norms = [e.square_norm for e in estimates]
    traces = [e.trace_covariance for e in estimates]
    for values, truth in ((square_norms, 5.25), (traces, 14.0)):
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 4 * error


@pytest.mark.slow
def test_average_recovers_the_analytic_noise_scale(rng: np.random.Generator) -> None:
    average = NoiseScaleAverage(small_batch=4, big_batch=16, decay=0.999)
    for _ in range(20_000):
        samples = 1.0 + 3.0 * rng.normal(size=16)
        small = np.mean(samples.reshape(4, 4).mean(axis=1) ** 2)
        average.observe(small, samples.mean() ** 2)
    assert average.value == pytest.approx(9.0, rel=0.15)


def test_first_observation_counts_fully() -> None:
    average = NoiseScaleAverage(small_batch=10, big_batch=30)
    average.observe(10.0, 6.0)
    assert average.value == pytest.approx(15.0)


def test_one_gradient_has_no_noise_scale() -> None:
    average = NoiseScaleAverage(small_batch=8, big_batch=8)
    average.observe(2.0, 2.0)
    assert average.value is None


@pytest.mark.parametrize("norms", [None, (10.0, 1.0), (2.0, 3.0)])
def test_estimates_out_of_range_are_missing(norms: tuple[float, float] | None) -> None:
    average = NoiseScaleAverage(small_batch=1, big_batch=4)
    if norms:
        average.observe(*norms)
    assert average.value is None


def test_state_goes_on_where_it_stopped() -> None:
    whole, half = (NoiseScaleAverage(small_batch=1, big_batch=4) for _ in range(2))
    for average in (whole, half):
        average.observe(5.0, 3.0)
    resumed = NoiseScaleAverage(small_batch=1, big_batch=4)
    resumed.state = half.state
    for average in (whole, resumed):
        average.observe(4.0, 2.5)
    assert resumed.value == whole.value

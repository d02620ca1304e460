from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from scalelab.laws.rows import step_time_rows
from scalelab.laws.step_time.points import Points, Scatter


def repeats(
    rng: np.random.Generator, counts: list[int], spreads: list[float]
) -> pd.DataFrame:
    rows = [
        (
            2**position,
            8,
            1,
            1,
            2**position,
            0.1 * np.exp(spread * rng.standard_normal()),
        )
        for position, (count, spread) in enumerate(zip(counts, spreads, strict=True))
        for _ in range(count)
    ]
    names = ["world_size", "local_batch_size", "num_nodes"]
    names += ["gradient_accumulation_steps", "data_parallel_size", "step_time_s"]
    return pd.DataFrame(rows, columns=names)


def test_repeats_become_one_point_with_their_spread(rng: np.random.Generator) -> None:
    points = Points.of(repeats(rng, [9, 9, 9], [0.05] * 3))
    assert len(points) == 3
    assert points.num_repeats.tolist() == [9, 9, 9]
    assert points.scatter.spread == pytest.approx(0.05, rel=0.5)


def test_one_configuration_that_is_repeated_all_the_time_does_not_decide(
    rng: np.random.Generator,
) -> None:
    found = [
        Points.of(repeats(rng, [60, 4, 4, 4, 4], [0.2, 0.02, 0.02, 0.02, 0.02])).scatter
        for _ in range(20)
    ]
    assert np.median([scatter.spread for scatter in found]) < 0.08
    assert np.median([scatter.spreads[0] for scatter in found]) > 0.15
    assert np.median([scatter.spreads[1] for scatter in found]) < 0.08


def coverage(of_runs: Callable[[np.random.Generator], np.ndarray]) -> float:
    """Share of further runs inside the 80% interval of three runs each, of 12 points.

    The interval is around the median of the runs, which is not known exactly either.
    """
    inside = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        logs = [of_runs(rng) for _ in range(12)]
        scatter = Scatter.of([values[:3] for values in logs])
        deviation = np.sqrt(1 + 1 / 3) * scatter.spreads
        reach = deviation * stdtrit(scatter.freedoms, 0.9)
        middle = [np.median(values[:3]) for values in logs]
        missed = np.abs([values[3] for values in logs] - np.array(middle))
        inside += list(missed < reach)
    return float(np.mean(inside))


def of_one_spread(rng: np.random.Generator) -> np.ndarray:
    return 0.03 * rng.standard_normal(4)


def with_heavy_tails(rng: np.random.Generator) -> np.ndarray:
    return 0.02 * rng.standard_t(2, 4)


def with_stragglers(rng: np.random.Generator) -> np.ndarray:
    return 0.01 * rng.standard_normal(4) + np.log(1.5) * (rng.random(4) < 0.1)


def some_contradict(rng: np.random.Generator) -> np.ndarray:
    return (0.8 if rng.random() < 0.15 else 0.02) * rng.standard_normal(4)


@pytest.mark.parametrize(
    "of_runs", [of_one_spread, with_heavy_tails, with_stragglers, some_contradict]
)
def test_four_of_five_further_runs_lie_inside(
    of_runs: Callable[[np.random.Generator], np.ndarray],
) -> None:
    assert 0.74 < coverage(of_runs) < 0.9


def test_without_repeats_a_run_scatters_as_the_prior_says(
    rng: np.random.Generator,
) -> None:
    alone = Scatter.of([np.zeros(1)] * 12)
    usual = 0.02 * np.exp(rng.standard_normal(100_000))
    runs = np.abs(usual * rng.standard_normal(100_000))
    for mass in (0.8, 0.9):
        reach = alone.spread * stdtrit(alone.freedom, (1 + mass) / 2)
        assert reach == pytest.approx(np.quantile(runs, mass), rel=0.3)


def test_a_run_may_be_as_far_off_as_one_that_is_doubted(
    rng: np.random.Generator,
) -> None:
    frame = repeats(rng, [1, 1, 9], [0.02] * 3)
    points = Points.of(frame)
    open_to = points.deviating(frame.iloc[[1]], np.array([0.3]))
    assert open_to.scatter.spreads[1] == 0.3
    others = [0, 2]
    assert (open_to.scatter.spreads == points.scatter.spreads)[others].all()
    again = open_to.deviating(frame.iloc[[1]], np.array([0.2]))
    assert again.scatter.spreads[1] == 0.3


def test_of_many_points_the_ends_of_each_allocation_are_kept() -> None:
    sizes, batches = (1, 2, 4, 8), range(1, 101)
    rows = [(n, b, 0.01 * b) for n in sizes for b in batches]
    names = ["world_size", "local_batch_size", "step_time_s"]
    frame = step_time_rows(pd.DataFrame(rows, columns=names)).frame
    points = Points.of(frame)
    some = points.fewer(40)
    assert len(some) == 40
    for size in sizes:
        kept = some.at.samples[some.at.world_size == size] * points.batch_unit
        assert kept.min() == pytest.approx(1)
        assert kept.max() == pytest.approx(100)
    assert points.fewer(400) is points

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.step_time.points import Points


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
    assert points.spread == pytest.approx(0.05, rel=0.5)


def test_one_configuration_that_is_repeated_all_the_time_does_not_decide(
    rng: np.random.Generator,
) -> None:
    found = [
        Points.of(repeats(rng, [60, 4, 4, 4, 4], [0.2, 0.02, 0.02, 0.02, 0.02])).spread
        for _ in range(20)
    ]
    assert np.median(found) < 0.08

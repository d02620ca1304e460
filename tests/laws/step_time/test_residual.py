import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time

from scalelab.laws.rows import step_time_rows
from scalelab.laws.step_time.curve import Curve
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.residual import ENOUGH_POINTS, Residual


def grid(count: int, rng: np.random.Generator) -> Configurations:
    return Configurations(
        world_size=rng.choice([1.0, 2, 4, 8], count),
        num_nodes=np.ones(count),
        samples=np.exp(rng.uniform(-2, 2, count)),
        accumulation=np.ones(count),
    )


def test_few_points_teach_nothing(rng: np.random.Generator) -> None:
    at = grid(ENOUGH_POINTS - 1, rng)
    assert Residual.fit(at, np.ones(ENOUGH_POINTS - 1)) is None


def test_noise_teaches_nothing(rng: np.random.Generator) -> None:
    assert Residual.fit(grid(1200, rng), 0.05 * rng.standard_normal(1200)) is None


def test_a_pattern_is_learned_and_kept_inside_the_measured_range(
    rng: np.random.Generator,
) -> None:
    at = grid(1200, rng)
    pattern = np.where(at.samples > 1, 0.2, -0.2)
    residual = Residual.fit(at, pattern + 0.02 * rng.standard_normal(1200))
    assert residual.share > 0.9
    asked, inside = grid(50, rng), np.arange(50) < 40
    correction = residual.correction(asked, inside)
    expected = np.where(asked.samples > 1, 0.2, -0.2)
    assert correction[:40] == pytest.approx(expected[:40], abs=0.08)
    assert (correction[40:] == 0).all()


def passes(frame: pd.DataFrame, count: int) -> pd.DataFrame:
    return frame.assign(gradient_accumulation_steps=count)


def test_a_long_history_is_interpolated_better_and_extrapolated_as_before(
    machine: dict[str, float],
) -> None:
    """Uneven placements are slow at some batches; 1200 configurations show it."""
    rng = np.random.default_rng(5)

    def measured(
        places: list[tuple[int, int]], batches: list[int] | range
    ) -> pd.DataFrame:
        rows = [
            (n, m, b, declared_step_time(machine, n, b) * slow(n, b))
            for n, m in places
            for b in batches
        ]
        names = ["world_size", "num_nodes", "local_batch_size", "step_time_s"]
        frame = passes(pd.DataFrame(rows, columns=names), 1)
        luck = np.exp(0.01 * rng.standard_normal(len(frame)))
        return frame.assign(step_time_s=frame["step_time_s"] * luck)

    def slow(world_size: int, batch: int) -> float:
        return 1.3 if world_size % 4 and 40 <= batch < 90 else 1.0

    def full(*sizes: int) -> list[tuple[int, int]]:
        return [(n, -(-n // 4)) for n in sizes]

    seen = measured(full(1, 2, 3, 4, 6, 8, 10, 12), range(4, 154))
    curve = Curve.fit((), step_time_rows(seen).frame, StepTimePrior.shipped())
    assert curve.residual is not None

    def both(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        at = Configurations.of(frame, curve.points.batch_unit)
        plain = curve.ensemble.mixture(at).mean + np.log(curve.points.time_unit_s)
        return curve.mixture(frame).mean, plain

    near = measured(full(5, 7, 9, 11), range(5, 153, 3))
    truth = np.log(near["step_time_s"].to_numpy())
    with_it, without = (np.abs(answer - truth).mean() for answer in both(near))
    assert with_it < 0.9 * without

    moving = range(41, 90, 3)  # where the correction inside is largest
    beyond = {
        "more devices": measured(full(32, 64), moving),
        "larger batches": measured(full(6, 10), range(160, 400, 16)),
        "smaller batches": measured(full(6, 10), [1, 2, 3]),
        "more nodes": measured([(10, 10)], moving),
        "fuller nodes": measured([(10, 2), (6, 1)], moving),
        "more passes": passes(measured(full(6, 10), moving), 8),
    }
    for name, frame in beyond.items():
        answer, physics = both(frame)
        assert answer == pytest.approx(physics, abs=1e-12), name

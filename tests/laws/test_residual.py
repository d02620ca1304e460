import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time

from scalelab.laws.curve import Curve
from scalelab.laws.physics import Configurations
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.residual import ENOUGH_POINTS, Residual
from scalelab.laws.rows import step_time_rows


def grid(count, rng):
    return Configurations(
        world_size=rng.choice([1.0, 2, 4, 8], count),
        num_nodes=np.ones(count),
        samples=np.exp(rng.uniform(-2, 2, count)),
        accumulation=np.ones(count),
    )


def test_few_points_teach_nothing(rng):
    at = grid(ENOUGH_POINTS - 1, rng)
    assert Residual.fit(at, np.ones(ENOUGH_POINTS - 1)) is None


def test_noise_teaches_nothing(rng):
    assert Residual.fit(grid(1200, rng), 0.05 * rng.standard_normal(1200)) is None


def test_a_pattern_is_learned_and_kept_inside_the_measured_range(rng):
    at = grid(1200, rng)
    pattern = np.where(at.samples > 1, 0.2, -0.2)
    residual = Residual.fit(at, pattern + 0.02 * rng.standard_normal(1200))
    assert residual.share > 0.9
    asked, inside = grid(50, rng), np.arange(50) < 40
    correction = residual.correction(asked, inside)
    expected = np.where(asked.samples > 1, 0.2, -0.2)
    assert correction[:40] == pytest.approx(expected[:40], abs=0.08)
    assert (correction[40:] == 0).all()


def test_a_long_history_is_interpolated_better_and_extrapolated_as_before(machine):
    """Uneven placements are slow at some batches; 1200 configurations show it."""
    rng = np.random.default_rng(5)

    def measured(sizes, batches):
        rows = [
            (n, -(-n // 4), b, declared_step_time(machine, n, b) * slow(n, b))
            for n in sizes
            for b in batches
        ]
        names = ["world_size", "num_nodes", "local_batch_size", "step_time_s"]
        frame = pd.DataFrame(rows, columns=names)
        frame["gradient_accumulation_steps"] = 1
        return frame.assign(
            step_time_s=lambda t: (
                t.step_time_s * np.exp(0.01 * rng.standard_normal(len(t)))
            )
        )

    def slow(world_size, batch):
        return 1.3 if world_size % 4 and 40 <= batch < 90 else 1.0

    seen = measured([1, 2, 3, 4, 6, 8, 10, 12], range(4, 154))
    near = measured([5, 7, 9, 11], range(5, 153, 3))
    far = measured([32, 64], range(5, 153, 3))
    curve = Curve.fit((), step_time_rows(seen).frame, StepTimePrior.shipped())
    assert curve.residual is not None

    def error(frame, with_residual):
        at = Configurations.of(frame, curve.points.batch_unit)
        plain = curve.ensemble.mixture(at).mean + np.log(curve.points.time_unit_s)
        answer = curve.mixture(frame).mean if with_residual else plain
        return np.abs(answer - np.log(frame["step_time_s"].to_numpy())).mean()

    assert error(near, True) < error(near, False)
    assert error(far, True) == pytest.approx(error(far, False))

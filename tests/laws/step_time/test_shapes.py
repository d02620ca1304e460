import itertools

import numpy as np
import pytest

from scalelab.laws.step_time.physics import NEVER, Configurations
from scalelab.laws.step_time.shapes import (
    FEED,
    NUM_PARAMETERS,
    PARAMETERS,
    Shape,
    in_batch_unit,
    log_time,
)

TYPICAL = np.array(
    [0, 0.5, 0.95, 0.0, -1, 0.2, 0.3, 0.1, 0.1, 0, 0.4, -3.5, -5.0, NEVER]
)
GROWING = ["growth", "growth_per_node", "growth_nodes", "node_jump"]


def at(
    sizes: list[int],
    nodes: int | np.ndarray = 1,
    batch: float | np.ndarray = 1.0,
    accumulation: float = 1.0,
) -> Configurations:
    sizes = np.array(sizes, dtype=float)
    full = np.ones(len(sizes))
    return Configurations(
        world_size=sizes,
        num_nodes=nodes * full,
        samples=batch * full,
        accumulation=accumulation * full,
    )


def machines(rng: np.random.Generator, count: int = 100) -> np.ndarray:
    """Any machine whose exchange grows with devices and nodes."""
    drawn = TYPICAL + 0.5 * rng.standard_normal((count, NUM_PARAMETERS))
    drawn[:, PARAMETERS.index("batch_exponent")] = rng.uniform(0.6, 1.1, count)
    for name in GROWING:
        column = PARAMETERS.index(name)
        drawn[:, column] = np.abs(drawn[:, column])
    drawn[:, PARAMETERS.index("second_node")] = 0.0
    return drawn


def time_of(parameters: np.ndarray, where: Configurations, shape: Shape) -> np.ndarray:
    return np.exp(log_time(parameters, where, shape)[0])


@pytest.mark.parametrize("shape", Shape)
def test_the_slopes_are_those_of_the_time(
    rng: np.random.Generator, shape: Shape
) -> None:
    where = Configurations(
        world_size=np.array([1, 2, 4, 8, 8, 3, 16, 64.0]),
        num_nodes=np.array([1, 1, 1, 1, 2, 2, 4, 16.0]),
        samples=rng.uniform(0.1, 5, 8),
        accumulation=np.array([1, 1, 2, 1, 1, 3, 1, 1.0]),
    )
    for parameters, feed in itertools.product(machines(rng, 5), (NEVER, -1.5)):
        parameters[FEED] = feed
        _, slopes = log_time(parameters, where, shape)
        for column, step in enumerate(1e-6 * np.eye(NUM_PARAMETERS)):
            up, down = (
                log_time(parameters + sign * step, where, shape)[0] for sign in (1, -1)
            )
            assert slopes[:, column] == pytest.approx((up - down) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("shape", Shape)
def test_one_device_only_computes(shape: Shape) -> None:
    silent = TYPICAL.copy()
    silent[PARAMETERS.index("exchange")] = -30
    for batch in (0.1, 1.0, 10.0):
        where = at([1], batch=batch)
        expected = time_of(silent, where, shape)
        assert time_of(TYPICAL, where, shape) == pytest.approx(expected)


@pytest.mark.parametrize("shape", Shape)
def test_computation_is_the_fixed_share_at_no_batch_and_a_power_of_a_large_one(
    shape: Shape,
) -> None:
    parameters = TYPICAL.copy()
    parameters[PARAMETERS.index("batch_sharpness")] = -20  # a plain sum
    share = 1 / (1 + np.exp(-0.5))
    assert time_of(parameters, at([1], batch=1e-12), shape) == pytest.approx(share)
    assert time_of(parameters, at([1]), shape) == pytest.approx(1.0)
    large = time_of(parameters, at([1, 1], batch=np.array([1e6, 2e6])), shape)
    assert large[1] / large[0] == pytest.approx(2**0.95, rel=1e-4)


@pytest.mark.parametrize("shape", Shape)
def test_time_rises_with_batch_devices_nodes_and_passes(
    rng: np.random.Generator, shape: Shape
) -> None:
    smaller_and_larger = [
        (at([8], 2, 0.5), at([8], 2, 2.0)),
        (at([2]), at([8])),
        (at([8], 2), at([16], 2)),
        (at([8], 4), at([16], 8)),
        (at([8], 2), at([8], 2, accumulation=2)),
    ]
    for parameters in machines(rng):
        for small, large in smaller_and_larger:
            assert (
                time_of(parameters, small, shape)
                <= time_of(parameters, large, shape) + 1e-12
            )


@pytest.mark.parametrize("shape", Shape)
def test_overlap_hides_no_more_than_the_shorter_of_the_two(
    rng: np.random.Generator, shape: Shape
) -> None:
    where = at([8, 16], np.array([1, 4]))
    plain = machines(rng, 1)[0]
    hidden = plain.copy()
    plain[PARAMETERS.index("overlap")] = -30
    hidden[PARAMETERS.index("overlap")] = 5
    alone = plain.copy()
    alone[PARAMETERS.index("exchange")] = -30
    computing = time_of(alone, where, shape)
    exchanging = time_of(plain, where, shape) - computing
    together = time_of(hidden, where, shape)
    assert together == pytest.approx(np.maximum(computing, exchanging), rel=0.01)


@pytest.mark.parametrize("shape", Shape)
def test_only_exactly_two_nodes_are_odd(shape: Shape) -> None:
    odd = TYPICAL.copy()
    odd[PARAMETERS.index("second_node")] = 0.5
    where = at([4, 8, 12], np.array([1, 2, 3]))
    ratio = time_of(odd, where, shape) / time_of(TYPICAL, where, shape)
    assert ratio[[0, 2]] == pytest.approx(1.0)
    assert ratio[1] > 1.05


def test_one_ring_without_jump_does_not_see_the_nodes() -> None:
    flat = TYPICAL.copy()
    for name in ("node_jump", "growth_per_node", "growth_nodes", "contention"):
        flat[PARAMETERS.index(name)] = -40.0 if name == "contention" else 0.0
    one, two = (time_of(flat, at([8], nodes), Shape.ONE_RING) for nodes in (1, 2))
    assert one == pytest.approx(two)


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("factor", [0.03, 1.0, 50.0])
def test_another_unit_of_batches_tells_the_same_times(
    rng: np.random.Generator, shape: Shape, factor: float
) -> None:
    old = at([1, 2, 4, 16], batch=rng.uniform(0.1, 9, 4))
    new = at([1, 2, 4, 16], batch=old.samples / factor)
    for parameters in machines(rng, 20):
        parameters[FEED] = rng.uniform(-4, 0)
        moved = in_batch_unit(parameters, factor)
        assert time_of(moved, new, shape) == pytest.approx(
            time_of(parameters, old, shape)
        )

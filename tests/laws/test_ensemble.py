from dataclasses import replace

import numpy as np
import pytest
from declared_machines import random_machine, sweep_rows

from scalelab.laws.ensemble import Ensemble
from scalelab.laws.physics import Configurations
from scalelab.laws.points import Points
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.process import Process
from scalelab.laws.rows import step_time_rows
from scalelab.laws.shape_fit import ShapeFit
from scalelab.laws.shapes import NUM_PARAMETERS, PARAMETERS, Shape, log_time

BELIEFS = StepTimePrior.shipped().beliefs


def at(sizes, batch=1.0, per_node=4):
    sizes = np.array(sizes, dtype=float)
    return Configurations(
        world_size=sizes,
        num_nodes=np.ceil(sizes / per_node),
        samples=np.full(len(sizes), batch),
        accumulation=np.ones(len(sizes)),
    )


@pytest.fixture(scope="module")
def points(rows):
    return Points.of(step_time_rows(rows).frame)


@pytest.fixture(scope="module")
def ensemble(points):
    return Ensemble.fit(points, BELIEFS)


def test_weights_add_up_and_every_shape_is_fitted(ensemble):
    assert sum(part.weight for part in ensemble.parts) == pytest.approx(1.0)
    assert set(ensemble.fits) == set(Shape)


def test_draws_have_the_moments_of_the_mixture(ensemble, rng):
    where = at([2, 12, 64, 256], 0.5)
    mean, variance = ensemble.moments(where)
    normals = rng.standard_normal((4000, NUM_PARAMETERS + 4))
    draws = ensemble.draws(where, normals)
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert draws.std(axis=0) == pytest.approx(np.sqrt(variance), rel=0.1)


def test_neighbouring_configurations_err_together(ensemble, rng):
    draws = ensemble.draws(
        at([128, 256]), rng.standard_normal((2000, NUM_PARAMETERS + 2))
    )
    assert np.corrcoef(draws.T)[0, 1] > 0.5


def test_many_configurations_are_answered_as_few_are(ensemble):
    sizes = np.arange(1, 2500)
    mean, variance = ensemble.moments(at(sizes))
    few_mean, few_variance = ensemble.moments(at([3, 2400]))
    assert mean[[2, 2399]] == pytest.approx(few_mean)
    assert variance[[2, 2399]] == pytest.approx(few_variance)


def test_the_discrepancy_fades_far_from_every_point(ensemble):
    """Far away the answer is that of the shapes, whatever the points left over."""
    far = at([4096], 500.0)
    fit = ensemble.fits[Shape.ONE_RING]
    carried = ensemble.process.cross(far) @ fit.nodes[0].weights
    assert abs(carried.item()) < 0.1 * np.sqrt(ensemble.process.variances[0])


def test_the_discrepancy_never_makes_an_extrapolation_worse_than_the_shapes():
    """On declared machines, beyond all that is fitted."""
    with_it, without = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        machine = random_machine(rng)
        every = sweep_rows(machine, rng, repeats=1, noise=0.03)
        seen = Points.of(step_time_rows(every[every["world_size"] <= 8]).frame)
        asked = every[every["world_size"] > 8].assign(gradient_accumulation_steps=1)
        where = Configurations.of(asked, seen.batch_unit)
        truth = np.log(asked["step_time_s"].to_numpy() / seen.time_unit_s)
        ensemble = Ensemble.fit(seen, BELIEFS)
        shapes = sum(
            part.weight * log_time(part.node.parameters, where, part.shape)[0]
            for part in ensemble.parts
        )
        with_it.append(np.abs(ensemble.moments(where)[0] - truth).mean())
        without.append(np.abs(shapes - truth).mean())
    assert np.mean(with_it) <= np.mean(without) * 1.02


def test_an_odd_point_is_doubted_and_the_others_are_not(rows):
    odd = rows.groupby(["world_size", "local_batch_size"], as_index=False).first()
    odd.loc[7, "step_time_s"] *= 3
    process = Ensemble.fit(Points.of(step_time_rows(odd).frame), BELIEFS).process
    assert process.doubt[7] > 5
    assert np.delete(process.doubt, 7).max() < 2


def test_amplitudes_follow_what_is_left_over(points, rng):
    rough = replace(
        points, log_time=points.log_time + 0.1 * rng.standard_normal(len(points))
    )
    single = [
        Ensemble.fit(given, BELIEFS).process.log_amplitudes[-1]
        for given in (points, rough)
    ]
    assert np.exp(single[1]) == pytest.approx(0.1, rel=0.5)
    assert single[0] < single[1]


def test_parameters_of_a_shape_are_recovered(rng):
    """Points drawn from a shape give its parameters back inside two deviations."""
    truth = BELIEFS[Shape.ONE_RING].mean.copy()
    truth[PARAMETERS.index("node_jump")] = 1.0
    truth[PARAMETERS.index("exchange")] = 0.3
    grid = [at(sizes, b) for b in (0.3, 1.0, 3.0) for sizes in [[1, 2, 4, 8, 16, 32]]]
    where = Configurations(
        **{
            name: np.concatenate([getattr(part, name) for part in grid])
            for name in ("world_size", "num_nodes", "samples", "accumulation")
        }
    )
    exact = log_time(truth, where, Shape.ONE_RING)[0]
    measured = Points(
        at=where,
        log_time=exact + 0.01 * rng.standard_normal(len(exact)),
        num_repeats=np.ones(len(exact)),
        spread=0.01,
        time_unit_s=1.0,
        batch_unit=1.0,
    )
    process = Process.of(measured, np.log([0.01, 0.005, 0.005, 0.005]))
    belief = BELIEFS[Shape.ONE_RING]
    fit = ShapeFit.fit(process, belief, Shape.ONE_RING, belief.mean)
    deviation = np.sqrt(np.diag(np.linalg.inv(fit.information + belief.precision)))
    assert (np.abs(fit.parameters - truth) < 2.5 * deviation).all()
    jump = PARAMETERS.index("node_jump")
    assert deviation[jump] < 0.7 * np.sqrt(belief.covariance[jump, jump])

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from declared_machines import random_machine, sweep_rows

from scalelab.laws.interval import SEED, normals
from scalelab.laws.rows import step_time_rows
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points, Scatter
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import ShapeFit
from scalelab.laws.step_time.shapes import NUM_PARAMETERS, PARAMETERS, Shape, log_time

PRIORS = StepTimePrior.shipped().priors


def at(
    sizes: list[int] | np.ndarray, batch: float = 1.0, per_node: int = 4
) -> Configurations:
    sizes = np.array(sizes, dtype=float)
    return Configurations(
        world_size=sizes,
        num_nodes=np.ceil(sizes / per_node),
        samples=np.full(len(sizes), batch),
        accumulation=np.ones(len(sizes)),
    )


@pytest.fixture(scope="module")
def points(rows: pd.DataFrame) -> Points:
    return Points.of(step_time_rows(rows).frame)


@pytest.fixture(scope="module")
def ensemble(points: Points) -> Ensemble:
    return Ensemble.fit(points, PRIORS)


def test_weights_add_up_and_every_shape_is_fitted(ensemble: Ensemble) -> None:
    for components in (ensemble.components_within, ensemble.components_across):
        assert sum(component.share for component in components) == pytest.approx(1.0)
    assert set(ensemble.fits) == set(Shape)


def test_draws_have_the_moments_of_the_mixture(
    ensemble: Ensemble,
) -> None:
    where = at([2, 12, 64, 256], 0.5)
    mixture = ensemble.mixture(where)
    mean, variance = mixture.mean, mixture.variance
    draws = ensemble.draws(where, normals(SEED, NUM_PARAMETERS))
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert draws.std(axis=0) == pytest.approx(np.sqrt(variance), rel=0.1)


def test_neighbouring_configurations_err_together(
    ensemble: Ensemble,
) -> None:
    draws = ensemble.draws(at([128, 256]), normals(SEED, NUM_PARAMETERS))
    assert np.corrcoef(draws.T)[0, 1] > 0.5


def test_many_configurations_are_answered_as_few_are(ensemble: Ensemble) -> None:
    sizes = np.arange(1, 2500)
    many, few = ensemble.mixture(at(sizes)), ensemble.mixture(at([3, 2400]))
    assert many.mean[[2, 2399]] == pytest.approx(few.mean)
    assert many.variance[[2, 2399]] == pytest.approx(few.variance)


def test_the_discrepancy_fades_far_from_every_point(ensemble: Ensemble) -> None:
    """Far away the answer is that of the shapes, whatever the points left over."""
    far = at([4096], 500.0)
    fit = ensemble.fits[Shape.ONE_RING]
    carried = ensemble.process.cross(far) @ fit.nodes[0].weights
    assert abs(carried.item()) < 0.1 * np.sqrt(ensemble.process.variances[0])


@pytest.mark.slow
def test_the_discrepancy_never_makes_an_extrapolation_worse_than_the_shapes() -> None:
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
        ensemble = Ensemble.fit(seen, PRIORS)
        shapes = sum(
            component.share * log_time(component.parameters, where, component.shape)[0]
            for component in ensemble.components_across
        )
        with_it.append(np.abs(ensemble.mixture(where).mean - truth).mean())
        without.append(np.abs(shapes - truth).mean())
    assert np.mean(with_it) <= np.mean(without) * 1.02


def test_the_variance_of_an_outlier_is_larger_than_of_others(rows: Any) -> None:
    odd = rows.groupby(["world_size", "local_batch_size"], as_index=False).first()
    odd.loc[7, "step_time_s"] *= 3
    process = Ensemble.fit(Points.of(step_time_rows(odd).frame), PRIORS).process
    assert process.factors[7] > 5
    assert np.delete(process.factors, 7).max() < 2


def test_amplitudes_follow_what_is_left_over(
    points: Points, rng: np.random.Generator
) -> None:
    rough = replace(
        points, log_time=points.log_time + 0.1 * rng.standard_normal(len(points))
    )
    single = [
        Ensemble.fit(given, PRIORS).process.log_amplitudes[-1]
        for given in (points, rough)
    ]
    assert np.exp(single[1]) == pytest.approx(0.1, rel=0.5)
    assert single[0] < single[1]


def test_parameters_of_a_shape_are_recovered(rng: np.random.Generator) -> None:
    """Points drawn from a shape give its parameters back inside two deviations."""
    truth = PRIORS[Shape.ONE_RING].mean.copy()
    truth[PARAMETERS.index("node_jump")] = 1.0
    truth[PARAMETERS.index("exchange")] = 0.3
    grid = [at(sizes, b) for b in (0.3, 1.0, 3.0) for sizes in [[1, 2, 4, 8, 16, 32]]]
    where = Configurations(
        **{
            name: np.concatenate([getattr(component, name) for component in grid])
            for name in ("world_size", "num_nodes", "samples", "accumulation")
        }
    )
    exact = log_time(truth, where, Shape.ONE_RING)[0]
    measured = Points(
        at=where,
        log_time=exact + 0.01 * rng.standard_normal(len(exact)),
        num_repeats=np.ones(len(exact)),
        own_variance=np.zeros(len(exact)),
        scatter=Scatter(
            spread=0.01,
            freedom=30.0,
            spreads=np.full(len(exact), 0.01),
            freedoms=np.full(len(exact), 30.0),
        ),
        time_unit_s=1.0,
        batch_unit=1.0,
    )
    process = DiscrepancyProcess.of(measured, np.log([0.01, 0.005, 0.005, 0.005]))
    prior = PRIORS[Shape.ONE_RING]
    fit = ShapeFit.fit(process, prior, Shape.ONE_RING)
    deviation = np.sqrt(
        np.diag(np.linalg.inv(fit.evidence.information + prior.precision))
    )
    assert (np.abs(fit.parameters - truth) < 2.5 * deviation).all()
    jump = PARAMETERS.index("node_jump")
    assert deviation[jump] < 0.7 * np.sqrt(prior.covariance[jump, jump])


def test_rows_that_no_shape_explains_widen_the_answer_and_are_not_extrapolated() -> (
    None
):
    """Three device counts measured on unlike machines: the rise is not believed."""
    found = {}
    asked = pd.DataFrame({"world_size": [8], "local_batch_size": 8})
    for name, times in {"steady": [1.0, 1.1, 1.2], "wild": [1.0, 1.0, 2.7]}.items():
        rows = pd.DataFrame(
            {"world_size": [1, 2, 4], "local_batch_size": 8, "step_time_s": times}
        )
        answer = StepTimeLaw.fit(rows).predict(asked).filter(like="step_time")
        found[name] = np.log(answer.iloc[0])
    wide = {
        name: row["step_time_hi_s"] - row["step_time_lo_s"]
        for name, row in found.items()
    }
    assert found["wild"]["step_time_s"] < np.log(2.7) < found["wild"]["step_time_hi_s"]
    assert wide["wild"] > 3 * wide["steady"]


def test_a_node_jump_that_nothing_tells_of_skews_the_answer() -> None:
    """Unmeasured, the second node may cost a lot and cannot gain much."""
    rows = pd.DataFrame(
        {
            "world_size": [1, 2, 3, 4] * 2,
            "local_batch_size": [8] * 4 + [32] * 4,
            "step_time_s": [1.0, 1.3, 1.35, 1.4, 3.5, 3.8, 3.85, 3.9],
        }
    )
    points = Points.of(step_time_rows(rows).frame)
    mixture = Ensemble.fit(points, PRIORS).mixture(at([16]))
    low, middle, high = (mixture.quantile(level).item() for level in (0.1, 0.5, 0.9))
    assert high - middle > 1.2 * (middle - low)

from dataclasses import replace

import numpy as np
import pytest

from scalelab.laws.step_time.shape_prior import Evidence, ShapePrior, informed
from scalelab.laws.step_time.shapes import NUM_PARAMETERS

JUMP = 6
PRIOR = ShapePrior(
    mean=np.zeros(NUM_PARAMETERS),
    covariance=np.eye(NUM_PARAMETERS),
    amplitude_mean=np.full(4, -3.0),
    amplitude_spread=np.ones(4),
)
SHARED = np.append(np.zeros(1), np.full(NUM_PARAMETERS - 1, 0.5))


def evidence(value: float, precision: float) -> Evidence:
    information = np.zeros((NUM_PARAMETERS, NUM_PARAMETERS))
    information[JUMP, JUMP] = precision
    information_vector = information @ np.full(NUM_PARAMETERS, value)
    return Evidence(
        information=information,
        information_vector=information_vector,
        amplitudes=np.full(4, -2.0),
    )


def test_without_relatives_nothing_changes() -> None:
    assert informed(PRIOR, [], SHARED) is PRIOR


def test_a_relative_moves_the_prior_by_what_the_family_shares() -> None:
    told = informed(PRIOR, [evidence(2.0, 1e6)], SHARED)
    # family variance 1/2, own deviation 1/2: half of what one relative shows
    assert told.mean[JUMP] == pytest.approx(1.0, rel=1e-3)
    assert told.covariance[JUMP, JUMP] == pytest.approx(0.75, rel=1e-3)
    assert np.delete(told.mean, JUMP) == pytest.approx(0.0, abs=1e-6)


def test_many_relatives_teach_the_family_but_never_the_own_deviation() -> None:
    told = informed(PRIOR, [evidence(2.0, 1e6)] * 200, SHARED)
    assert told.mean[JUMP] == pytest.approx(2.0, rel=0.02)
    assert told.covariance[JUMP, JUMP] == pytest.approx(0.5, rel=0.02)


def test_a_relative_that_measured_nothing_teaches_nothing() -> None:
    told = informed(PRIOR, [evidence(2.0, 0.0)], SHARED)
    assert told.mean == pytest.approx(PRIOR.mean, abs=1e-6)
    assert np.diag(told.covariance)[1:] == pytest.approx(1.0, rel=1e-3)


def test_units_of_time_are_not_shared() -> None:
    heavy = evidence(2.0, 1e6)
    heavy = replace(heavy, information=1e6 * np.eye(NUM_PARAMETERS))
    told = informed(PRIOR, [heavy], SHARED)
    assert told.mean[0] == 0.0
    assert told.covariance[0, 0] == pytest.approx(9.0)

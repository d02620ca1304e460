"""The bracket of a rate: how few runs find the best, whatever the seeds do."""

import math

import numpy as np
import pytest

from scalelab.search.tuned_rates import (
    STEP,
    best_place,
    first_rate,
    rate_at,
    wanted_runs,
)


def searched(
    optimum: float, *, noise: float = 0.0, num_seeds: int = 1, seed: int = 0
) -> dict[int, list[float]]:
    """Search a parabola of the logarithm of the rate; places are those of the grid."""
    generator, costs = np.random.default_rng(seed), dict[int, list[float]]()
    while wanted := wanted_runs(costs, num_seeds):
        for place, number in wanted:
            assert number == len(costs.get(place, ()))
            cost = 0.3 * ((place - optimum) * math.log(STEP)) ** 2
            cost += noise * generator.standard_normal()
            costs.setdefault(place, []).append(1000 * math.exp(cost))
        assert sum(map(len, costs.values())) <= 40 * num_seeds
    return costs


@pytest.mark.parametrize("optimum", [0, 0.4, -1, 1.6, 3, -5, 8, -14])
def test_it_ends_within_a_tenth_of_the_best_cost(optimum: float) -> None:
    costs = searched(optimum)
    distance = abs(best_place(costs) - optimum) * math.log(STEP)
    assert 0.3 * distance**2 <= 0.1
    assert len(costs) <= 10


def test_a_beginning_that_is_right_is_confirmed_by_four_more() -> None:
    assert len(searched(0)) == 5


def test_the_best_is_run_with_every_seed_and_so_are_its_rivals() -> None:
    costs = searched(0.9, noise=0.05, num_seeds=3)
    best = best_place(costs)
    assert len(costs[best]) == 3


def test_seeds_that_scatter_cost_runs_and_not_the_rate() -> None:
    errors, runs = [], []
    for seed in range(200):
        costs = searched(2, noise=0.1, num_seeds=3, seed=seed)
        errors.append(abs(best_place(costs) - 2) * math.log(STEP))
        runs.append(sum(map(len, costs.values())))
    assert np.quantile(errors, 0.9) <= math.log(2.9)
    assert np.median(runs) <= 14


def test_beyond_what_is_searched_the_last_rate_stands() -> None:
    costs = searched(60)
    assert best_place(costs) == 14  # a factor of 128


def test_a_search_begins_where_the_rules_of_solved_batches_lead() -> None:
    assert first_rate({64: 0.1}, 256) == pytest.approx(0.2)  # sqrt of one alone
    assert first_rate({16: 0.05, 64: 0.2}, 256) == pytest.approx(0.8)  # linear
    assert first_rate({16: 0.1, 64: 0.1}, 256) == pytest.approx(0.1)  # none


def test_rates_have_the_digits_of_people() -> None:
    assert [rate_at(0.1, place) for place in (-2, -1, 0, 1)] == [
        0.05,
        0.07071,
        0.1,
        0.1414,
    ]

"""Campaigns against all assignments on small cases, and a bound on large ones."""

import itertools

import numpy as np
import pytest

from scalelab.recommend.chained import Campaign


def campaign(
    num_runs: int, pool: int, times: dict[int, float], scatter: float = 0.0
) -> Campaign:
    sizes = [size for size in times if size <= pool]
    return Campaign(
        num_runs=num_runs,
        pool=pool,
        sizes=np.array(sizes),
        time_s=np.array([[times[size] for size in sizes]] * 200),
        scatter=np.full(len(sizes), scatter),
    )


def amdahl(rng: np.random.Generator, most: int) -> dict[int, float]:
    share, sizes = rng.uniform(0.5, 0.995), [1]
    while 2 * sizes[-1] <= most:
        sizes.append(2 * sizes[-1])
    return {
        size: float(100 * (1 - share + share / size) * rng.uniform(0.97, 1.03))
        for size in sizes
    }


def shortest(num_runs: int, pool: int, times: dict[int, float]) -> float:
    """Return the least makespan over all sizes and all orders of list schedules."""
    best = float("inf")
    for sizes in itertools.combinations_with_replacement(times, num_runs):
        if max(sizes) > pool:
            continue
        for order in {*itertools.permutations(sizes)}:
            free = [0.0] * pool
            for size in order:
                free.sort()
                free[:size] = [free[size - 1] + times[size]] * size
            best = min(best, max(free))
    return best


def soonest(found: Campaign) -> float:
    return min(float(np.median(found.makespan_s(plan))) for plan in found.plans())


@pytest.mark.parametrize("seed", range(25))
def test_small_campaigns_are_near_the_best_of_all_schedules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool, num_runs = int(rng.integers(2, 7)), int(rng.integers(1, 6))
    times = amdahl(rng, pool)
    found = soonest(campaign(num_runs, pool, times))
    best = shortest(num_runs, pool, times)
    assert best * 0.999 <= found <= 1.2 * best


@pytest.mark.parametrize("seed", range(20))
def test_large_campaigns_are_near_the_bound(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    pool, num_runs = int(rng.integers(16, 65)), int(rng.integers(20, 120))
    found = campaign(num_runs, pool, amdahl(rng, pool))
    bound = found.lower_bound_s()
    assert bound * 0.999 <= soonest(found) <= 1.35 * bound


def test_every_plan_has_all_runs_and_fits() -> None:
    times_s = amdahl(np.random.default_rng(7), 30)
    found = campaign(5, 30, times_s)
    plans = [*found.plans()]
    assert len(plans) > 1
    for plan in plans:
        assert sum(plan.values()) == 5
        assert max(plan) <= 30
        assert len(found.makespan_s(plan)) == 200
    # the first is the soonest, the last takes least device time
    times = [found.makespan_s(plan)[0] for plan in plans]
    costs = [sum(n * k * times_s[k] for k, n in plan.items()) for plan in plans]
    assert times[0] == min(times)
    assert costs[-1] == min(costs)


def test_perfect_scaling_runs_one_after_the_other_or_beside_alike() -> None:
    times = {size: 64.0 / size for size in (1, 2, 4, 8)}
    found = campaign(8, 8, times)
    assert soonest(found) == pytest.approx(64.0)
    assert found.lower_bound_s() == pytest.approx(64.0)


def test_scatter_makes_the_last_of_many_late_and_errors_are_shared() -> None:
    times = {1: 100.0}
    steady, unsteady = campaign(16, 16, times), campaign(16, 16, times, scatter=0.1)
    assert steady.makespan_s({1: 16}) == pytest.approx(np.full(200, 100.0))
    late = unsteady.makespan_s({1: 16})
    # the mean of the largest of 16 normal values is 1.77
    assert np.median(late) == pytest.approx(100 * np.exp(0.177), rel=0.02)

    # the law's error moves all runs together: it does not average out
    err = np.exp(np.random.default_rng(0).normal(0, 0.2, (200, 1)))
    unsure = Campaign(
        num_runs=16,
        pool=16,
        sizes=np.array([1]),
        time_s=100 * err,
        scatter=np.zeros(1),
    )
    spread = np.std(np.log(unsure.makespan_s({1: 16})))
    assert spread == pytest.approx(0.2, rel=0.15)

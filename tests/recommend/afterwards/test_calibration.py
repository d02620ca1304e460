"""Intervals after jobs that were followed: wider at once, narrower after many."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scalelab.recommend.afterwards.calibration import Calibration
from scalelab.records.afterwards.followed import KeptJob, KeptValue

MASS = 0.8


def job(
    number: int, true: float, half: float = 0.05, widened_by: float = 0.0, **said: bool
) -> KeptJob:
    """Return a job that took ``true`` times as long as predicted."""
    ends = half + widened_by
    value = KeptValue(predicted=1.0, lo=math.exp(-ends), hi=math.exp(ends), true=true)
    return KeptJob(
        job=str(number),
        run="vit",
        workload="vit",
        device_name="A100",
        configuration=f"1x{number % 4 + 1} batch 16",
        mass=MASS,
        widened_by=widened_by,
        was_as_asked=said.get("was_as_asked", True),
        values={"step_time_s": value},
    )


def test_without_jobs_nothing_changes() -> None:
    assert Calibration.of([], MASS) == Calibration()
    draws = np.exp(np.random.default_rng(0).normal(0, 0.1, (400, 3)))
    assert Calibration().applied(draws, MASS) is draws
    assert [*Calibration().notes(MASS)] == []


def test_the_first_job_that_is_off_widens_at_once() -> None:
    found = Calibration.of([job(0, 1.5)], MASS)
    assert found.widened_by == pytest.approx(math.log(1.5) - 0.05)
    assert (found.num_jobs, found.num_held) == (1, 0)
    # faster than predicted is as far off
    faster = Calibration.of([job(0, 1 / 1.5)], MASS)
    assert faster.widened_by == pytest.approx(found.widened_by)


def test_a_job_with_an_interval_of_any_width_is_no_error() -> None:
    value = KeptValue(predicted=1.0, lo=5e-324, hi=1e308, true=1e-300)
    kept = replace(job(0, 1.0), values={"step_time_s": value})
    assert Calibration.of([kept], MASS).num_jobs == 1


def test_few_jobs_that_held_change_nothing() -> None:
    held = [job(number, 1.01) for number in range(9)]
    assert Calibration.of(held, MASS).widened_by == 0
    alike = [job(4 * number, 1.01) for number in range(20)]
    assert Calibration.of(alike, MASS).num_configurations == 1
    assert Calibration.of(alike, MASS).widened_by == 0


def test_ten_jobs_of_three_configurations_narrow() -> None:
    held = [job(number, 1.01) for number in range(10)]
    found = Calibration.of(held, MASS)
    assert found.num_configurations == 4
    assert found.widened_by == pytest.approx(math.log(1.01) - 0.05)


def test_another_job_than_the_answers_teaches_nothing() -> None:
    assert Calibration.of([job(0, 9.0, was_as_asked=False)], MASS).num_jobs == 0


def test_a_job_counts_from_the_interval_of_the_law() -> None:
    """One that a widened interval held would have been outside of the law's own."""
    found = Calibration.of([job(0, 1.2, widened_by=0.3)], MASS)
    assert found.num_held == 1
    assert found.widened_by == pytest.approx(math.log(1.2) - 0.05)


def test_the_ends_of_draws_move_and_their_median_and_order_stay() -> None:
    rng = np.random.default_rng(1)
    draws = 3.0 * np.exp(rng.normal(0, [0.001, 0.05, 0.5], (4000, 3)))
    moved = Calibration(widened_by=0.2).applied(draws, MASS)
    assert np.median(moved, axis=0) == pytest.approx(np.median(draws, axis=0))
    assert (np.argsort(moved, axis=0) == np.argsort(draws, axis=0)).all()
    before, after = (np.log(np.quantile(d, [0.1, 0.9], axis=0)) for d in (draws, moved))
    halves = ((after - before)[1] - (after - before)[0]) / 2
    assert halves == pytest.approx([0.2] * 3, rel=0.05)


def test_intervals_never_shrink_to_less_than_half() -> None:
    draws = np.exp(np.random.default_rng(2).normal(0, 0.05, (4000, 1)))
    moved = Calibration(widened_by=-5.0).applied(draws, MASS)
    before, after = (
        np.diff(np.log(np.quantile(d, [0.1, 0.9]))) for d in (draws, moved)
    )
    assert after / before == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("truth", [0.02, 0.05, 0.2])
def test_the_next_job_is_held_as_often_as_said(truth: float) -> None:
    """The law says 0.05 / 1.28 everywhere; jobs scatter by less, as much, or more."""
    rng, held, half = np.random.default_rng(3), [], 0.05
    for _ in range(300):
        off = rng.normal(0, truth / 1.28, 21)
        jobs = [job(number, math.exp(error)) for number, error in enumerate(off[:-1])]
        widened_by = Calibration.of(jobs, MASS).widened_by
        held.append(abs(off[-1]) <= max(half + widened_by, half / 2))
    share = np.mean(held)
    assert share >= MASS - 0.06
    assert truth < half or share <= MASS + 0.08


def test_the_note_says_how_often_and_what_follows() -> None:
    jobs = [job(number, 1.01) for number in range(3)]
    (fact,) = Calibration.of([*jobs, job(3, 1.5)], MASS).notes(MASS)
    assert fact.values["num_jobs"] == 4
    assert fact.values["num_held"] == 3
    assert fact.values["widened_by"] > 0.3

"""The planner of measurements, on draws whose decision is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from scalelab.plan.inquiry import Ending, Purpose
from scalelab.search.planner import Candidates, Prospects, next_step

SIZES = np.array([1.0, 2.0, 4.0, 8.0])


def prospects(amounts: np.ndarray, shown: np.ndarray | None = None) -> Prospects:
    """Return what is expected where these amounts are kept small, (n_draws, n)."""
    regret = amounts / amounts.min(axis=1, keepdims=True) - 1
    return Prospects(regret=regret, shown=amounts if shown is None else shown)


def candidates(num_runs: Sequence[int] = (1, 0, 0, 0), **known: Any) -> Candidates:
    size = len(num_runs)
    usual = {
        "sizes": SIZES[:size],
        "costs": SIZES[:size].copy(),
        "num_runs": np.array(num_runs),
        "is_affordable": np.ones(size, bool),
        "is_broken": np.zeros(size, bool),
    }
    return Candidates(**{**usual, **known})


@pytest.fixture
def open_rivals(rng: np.random.Generator) -> Prospects:
    """Two of 4 and 8 devices are alike but for what is not known of the larger."""
    amounts = np.tile([4.0, 2.0, 1.0, 1.0], (400, 1))
    amounts[:, 3] *= np.exp(0.4 * rng.standard_normal(400))
    amounts *= np.exp(0.001 * rng.standard_normal((400, 4)))
    return prospects(amounts)


def known_pick(best: int) -> Prospects:
    amounts = np.tile([9.0, 9.0, 9.0, 9.0], (400, 1))
    amounts[:, best] = 1.0
    noise = np.random.default_rng(1).standard_normal((400, 4))
    return prospects(amounts, np.exp(0.1 * noise))


def test_what_a_trial_shows_is_worth_what_the_decision_gains(
    rng: np.random.Generator,
) -> None:
    rival = np.exp(0.4 * rng.standard_normal(400))
    drawn = prospects(np.column_stack([np.ones(400), rival]))
    first, second = drawn.gains()
    assert second == pytest.approx(drawn.mean.min(), rel=0.1), "it settles everything"
    assert first < 0.3 * second
    assert drawn.gains([1])[1] < 0.1 * second, "it is under way already"


def test_a_trial_that_shows_nothing_of_the_rivals_is_worth_nothing(
    rng: np.random.Generator, open_rivals: Prospects
) -> None:
    unrelated = Prospects(
        regret=open_rivals.regret, shown=np.exp(rng.standard_normal((400, 4)))
    )
    assert unrelated.gains().max() < 0.2 * open_rivals.gains()[3]


def test_the_trial_that_decides_is_next(open_rivals: Prospects) -> None:
    step = next_step(candidates(), open_rivals, None)
    assert (step.candidate, step.purpose) == (3, Purpose.DECIDES)
    assert step.settles == pytest.approx(1.0, abs=0.1)
    assert step.surety < 0.9


def test_of_trials_that_tell_alike_the_cheapest_is_next(open_rivals: Prospects) -> None:
    shown = open_rivals.shown.copy()
    shown[:, 1] = shown[:, 3]
    told = Prospects(regret=open_rivals.regret, shown=shown)
    assert next_step(candidates(), told, None).candidate == 1


def test_a_trial_that_costs_more_than_knowing_would_save_is_not_worth_it(
    open_rivals: Prospects,
) -> None:
    regret = open_rivals.mean.min()
    step = next_step(candidates(), open_rivals, 0.9 * 8.0 / regret)
    assert step.ending is Ending.NOT_WORTH
    assert next_step(candidates(), open_rivals, 1.1 * 8.0 / regret).ending is None


def test_what_does_not_fit_into_the_budget_gives_way_or_ends_the_plan(
    open_rivals: Prospects,
) -> None:
    shown = open_rivals.shown.copy()
    shown[:, 2] *= np.sqrt(shown[:, 3])
    told = Prospects(regret=open_rivals.regret, shown=shown)
    cannot = np.array([True, True, True, False])
    assert next_step(candidates(is_affordable=cannot), told, None).candidate == 2
    nothing = next_step(candidates(is_affordable=np.zeros(4, bool)), told, None)
    assert nothing.ending is Ending.SPENT
    assert nothing.candidate is not None, "what a little more would buy"


def test_beyond_the_pick_one_trial_runs_before_it_is_known() -> None:
    sure = known_pick(best=1)
    first = next_step(candidates([1, 0, 0, 0]), sure, None)
    assert (first.candidate, first.purpose) == (2, Purpose.BEYOND)
    second = next_step(candidates([1, 0, 1, 0]), sure, None)
    assert (second.candidate, second.purpose) == (1, Purpose.CONFIRMS)
    assert next_step(candidates([1, 1, 1, 0]), sure, None).ending is Ending.KNOWN


def test_far_beyond_the_pick_says_nothing_of_a_cliff_next_to_it() -> None:
    step = next_step(candidates([1, 0, 0, 1]), known_pick(best=0), None)
    assert (step.candidate, step.purpose) == (1, Purpose.BEYOND)


def test_a_measured_time_that_contradicts_the_pick_is_measured_again() -> None:
    """The pick would be a tenth worse than candidate 2, as that one was measured."""
    sure = known_pick(best=3)
    as_measured = {
        1: np.array([9.0, 0.0, 9.0, 0.04]),
        2: np.array([9.0, 9.0, 0.0, 0.1]),
    }
    doubtful = Prospects(regret=sure.regret, shown=sure.shown, as_measured=as_measured)
    step = next_step(candidates([1, 1, 1, 1]), doubtful, None)
    assert (step.candidate, step.purpose) == (2, Purpose.CONTRADICTS)

    often = next_step(candidates([1, 1, 3, 1]), doubtful, None)
    assert often.ending is Ending.KNOWN, "three times are enough"
    runs = next_step(candidates([1, 1, 1, 1], pending=[2]), doubtful, None)
    assert (runs.candidate, runs.ending) == (None, None), "it is waited for"


def test_what_a_trial_shows_of_many_jobs_pays_after_the_decision_is_known(
    rng: np.random.Generator,
) -> None:
    """Candidate 2 wins in 6% of the draws, and a trial of it would tell."""
    amounts = np.tile([9.0, 9.0, 1.2, 1.0], (400, 1))
    amounts[:24, 2] = 0.5
    amounts *= np.exp(0.001 * rng.standard_normal((400, 4)))
    sure = prospects(amounts)
    regret = sure.mean.min()
    assert sure.surety > 0.9

    ended = [
        next_step(candidates([1, 1, 0, 1]), sure, worth).ending
        for worth in (None, 0.5 * 4.0 / regret)
    ]
    assert ended == [Ending.KNOWN, Ending.KNOWN]
    step = next_step(candidates([1, 1, 0, 1]), sure, 4.0 * 4.0 / regret)
    assert (step.candidate, step.purpose) == (2, Purpose.DECIDES)

    cannot = np.array([True, True, False, True])
    known = candidates([1, 1, 0, 1], is_affordable=cannot)
    assert next_step(known, sure, 4.0 * 4.0 / regret).ending is Ending.KNOWN


def test_what_is_known_ends_as_known_whatever_a_trial_is_worth() -> None:
    """Of these draws the estimate of a gain exceeds the expected regret."""
    rng = np.random.default_rng(21)
    amounts = np.tile([9.0, 9.0, 1.0, 1.0], (400, 1))
    amounts *= np.exp(0.02 * rng.standard_normal((400, 4)))
    for rival in (2, 3):
        amounts[rng.random(400) < 0.05, rival] *= 1.2
    sure = prospects(amounts)
    regret = sure.mean.min()
    assert sure.surety > 0.9
    assert sure.gains()[2] > regret

    for times in np.linspace(0.8, 1.2, 41):
        step = next_step(candidates([1, 1, 1, 1]), sure, times * 4.0 / regret)
        assert step.ending in (None, Ending.KNOWN)


def test_nothing_lies_beyond_the_largest() -> None:
    step = next_step(candidates([1, 0, 0, 0]), known_pick(best=3), None)
    assert (step.candidate, step.purpose) == (3, Purpose.CONFIRMS)


def test_what_runs_is_waited_for(open_rivals: Prospects) -> None:
    step = next_step(candidates(pending=[3]), open_rivals, None)
    assert (step.candidate, step.ending) == (None, None)
    sure = candidates([1, 1, 0, 0], pending=[2])
    assert next_step(sure, known_pick(best=1), None).ending is None


def test_what_failed_is_not_chosen_and_does_not_run_again(
    open_rivals: Prospects,
) -> None:
    broken = np.array([False, False, False, True])
    alone = prospects(open_rivals.shown[:, :3]).regret
    regret = np.column_stack([alone, np.full(len(alone), np.inf)])
    rest = Prospects(regret=regret, shown=open_rivals.shown)
    step = next_step(candidates([1, 0, 1, 0], is_broken=broken), rest, None)
    assert (step.pick, step.ending) == (2, Ending.KNOWN)


def test_what_is_alike_to_the_last_is_not_measured_for_ever(
    rng: np.random.Generator,
) -> None:
    amounts = np.exp(0.3 * rng.standard_normal((400, 4)))
    step = next_step(candidates([3, 3, 3, 3]), prospects(amounts), None)
    assert step.ending is Ending.EXHAUSTED

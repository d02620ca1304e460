"""What a long trial says of its later steps, from step times that are given."""

from typing import Any

import numpy as np
import pytest

from scalelab.launch.steady import later_columns

WARMUP, BATCH = 5, 32
WINDOW_END = 55
EPOCH_STEPS = 100


def columns(
    seconds: list[float], *, window_end: int = WINDOW_END, has_epochs: bool = True
) -> dict[str, Any]:
    """Return what steps after the warm-up say, each with some noise."""
    noise = np.random.default_rng(0).normal(1, 0.03, len(seconds))
    return later_columns(
        np.array(seconds) * noise,
        WARMUP + 1 + np.arange(len(seconds)),
        window_end=window_end,
        samples_per_step=BATCH,
        samples_per_epoch=EPOCH_STEPS * BATCH if has_epochs else None,
    )


def paused(at: tuple[int, ...], *, pause_s: float, num_steps: int = 700) -> list[float]:
    """Return steps of 40 ms, with a pause in those that end after so many steps."""
    seconds = [0.04] * num_steps
    for step in at:
        seconds[step - WARMUP - 1] += pause_s
    return seconds


@pytest.mark.parametrize("seconds", [[0.04] * 500, [0.04] * 50, [0.04] * 52])
def test_steps_that_go_on_as_before_are_not_told(seconds: list[float]) -> None:
    assert "later_differs" not in columns(seconds)


@pytest.mark.parametrize("factor", [0.25, 1.2, 4.0])
def test_steps_that_move_after_the_window_are_not_explained(factor: float) -> None:
    found = columns([0.04] * 64 + [0.04 * factor] * 500)
    assert found["later_differs"] == "unexplained"
    assert found["window_step_time_s"] == pytest.approx(0.04, rel=0.02)
    assert found["later_step_time_s"] == pytest.approx(0.04 * factor, rel=0.1)


def test_a_change_of_a_twentieth_or_less_is_none() -> None:
    assert "later_differs" not in columns([0.04] * 64 + [0.0415] * 500)


@pytest.mark.parametrize("at", [(200, 400, 600), (90, 290, 490, 690), (200, 400)])
def test_pauses_at_even_distances_count_as_evaluation(at: tuple[int, ...]) -> None:
    found = columns(paused(at, pause_s=20.0, num_steps=at[-1] + 50))
    assert found["later_differs"] == "pauses"
    assert found["later_step_time_s"] == pytest.approx(0.04, rel=0.02)
    assert found["evaluation_interval_samples"] == 200 * BATCH
    # As many as fit into the steps, however soon after a pause they end.
    num_steps = at[-1] + 55
    assert found["evaluation_s"] == pytest.approx(20.0 * num_steps / 200, rel=0.05)


@pytest.mark.parametrize(
    "at", [(200,), (200, 210), (200, 260, 500), (200, 250), (100, 150, 200)]
)
def test_pauses_that_are_not_even_are_not_explained(at: tuple[int, ...]) -> None:
    found = columns(paused(at, pause_s=20.0))
    assert found["later_differs"] == "unexplained"
    assert "evaluation_s" not in found


def test_a_short_pause_of_a_long_trial_is_no_matter() -> None:
    assert "later_differs" not in columns(paused((300,), pause_s=1.0))


def test_pauses_that_other_trials_have_seen_are_in_their_times() -> None:
    every = tuple(range(20, 700, 20))
    assert "later_differs" not in columns(paused(every, pause_s=0.5))


def test_a_slow_first_epoch_is_told_by_where_it_ends() -> None:
    found = columns([0.15] * (EPOCH_STEPS - WARMUP) + [0.02] * 700, window_end=29)
    assert found["later_differs"] == "first_epoch"
    assert found["later_step_time_s"] == pytest.approx(0.02, rel=0.02)
    assert found["first_epoch_s"] == pytest.approx(0.13 * EPOCH_STEPS, rel=0.05)
    assert found["first_epoch_samples"] == EPOCH_STEPS * BATCH


@pytest.mark.parametrize(("num_slow", "has_epochs"), [(60, True), (95, False)])
def test_a_change_elsewhere_is_no_first_epoch(num_slow: int, has_epochs: bool) -> None:
    seconds = [0.15] * num_slow + [0.02] * 700
    found = columns(seconds, window_end=29, has_epochs=has_epochs)
    assert found["later_differs"] == "unexplained"


def test_a_first_epoch_with_pauses_between_epochs_has_both() -> None:
    seconds = [0.05] * (EPOCH_STEPS - WARMUP) + [0.02] * 505
    for step in range(EPOCH_STEPS, 600, EPOCH_STEPS):
        seconds[step - WARMUP - 1] += 2.0
    found = columns(seconds)
    assert found["later_differs"] == "first_epoch"
    assert found["later_step_time_s"] == pytest.approx(0.02, rel=0.05)
    assert found["evaluation_interval_samples"] == EPOCH_STEPS * BATCH


@pytest.mark.parametrize("window_end", [WARMUP, WARMUP + 2, 10_000])
def test_too_few_steps_before_or_after_tell_nothing(window_end: int) -> None:
    assert columns([0.04] * 60 + [0.4] * 60, window_end=window_end) == {}


def test_a_window_that_had_not_settled_tells_nothing() -> None:
    assert columns([0.02 + 0.001 * step for step in range(500)]) == {}

"""Which intervals between reports are steps, and which hold evaluations."""

from __future__ import annotations

import pytest

from scalelab.launch.command.steps import Interval, Intervals


def intervals(
    *seconds: float, evaluated: tuple[int, ...] = (), warm_up: int = 0
) -> Intervals:
    """Return intervals of ten steps each; the positions in ``evaluated`` hold one."""
    found = Intervals(warmup_steps=10 * warm_up)
    for position, each in enumerate(seconds):
        found.append(
            Interval(
                num_steps=10,
                seconds=each,
                end_step=10 * (position + 1),
                holds_evaluation=position in evaluated,
            )
        )
    return found


def test_without_evaluations_every_interval_after_the_warm_up_is_measured() -> None:
    found = intervals(9.0, 1.0, 50.0, warm_up=1)
    assert (found.num_steps, found.seconds) == (20, 51.0)
    assert (found.num_evaluations, found.evaluation_s()) == (0, 0.0)
    assert found.steps_between_evaluations is None


def test_what_an_evaluation_takes_beyond_its_steps_is_set_apart() -> None:
    found = intervals(1.0, 1.0, 7.0, 1.0, 1.0, 9.0, 1.0, evaluated=(2, 5))
    assert (found.num_steps, found.seconds) == (50, 5.0)
    assert found.step_times_s().tolist() == pytest.approx([0.1] * 5)
    assert found.evaluation_s() == pytest.approx(6.0 + 8.0)
    assert found.evaluation_s(until_step=30) == pytest.approx(6.0)
    assert found.steps_between_evaluations == 30


@pytest.mark.parametrize("neighbour", [1, 3])
def test_a_long_interval_beside_an_evaluation_belongs_to_it(neighbour: int) -> None:
    seconds = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    seconds[neighbour] = 5.0
    found = intervals(*seconds, evaluated=(2,))
    assert (found.num_steps, found.seconds) == (40, 4.0)
    assert found.evaluation_s() == pytest.approx(4.0)


def test_a_long_interval_elsewhere_is_a_slow_step() -> None:
    found = intervals(1.0, 1.0, 1.0, 1.0, 5.0, 1.0, evaluated=(1,))
    assert (found.num_steps, found.seconds) == (50, 9.0)


def test_a_slightly_slow_interval_beside_an_evaluation_is_measured() -> None:
    found = intervals(1.0, 1.0, 6.0, 1.5, 1.0, evaluated=(2,))
    assert (found.num_steps, found.seconds) == (40, 4.5)


def test_evaluations_in_every_interval_leave_nothing_to_measure() -> None:
    found = intervals(2.0, 2.0, 2.0, evaluated=(0, 1, 2))
    assert (found.num_steps, found.seconds, found.num_evaluations) == (0, 0, 3)


def test_evaluations_during_the_warm_up_count_as_evaluations() -> None:
    found = intervals(9.0, 1.0, 1.0, 1.0, evaluated=(0,), warm_up=1)
    assert (found.num_steps, found.seconds) == (30, 3.0)
    assert found.evaluation_s() == pytest.approx(8.0)

"""When the loop of a rank has measured enough, from clock readings that are given."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scalelab.experiment.trial import LONG, Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.training.loop import Ending, Loop
from scalelab.training.rank import later_columns_of

TRIAL = Trial(
    kind=TrialKind.THROUGHPUT,
    workload="emulated",
    allocation=Allocation(devices_per_node=(1,)),
    local_batch_size=8,
    measurement=Measurement(warmup_steps=6, steps=20, relative_precision=1e-9),
)
LONG_TRIAL = replace(TRIAL, repeat=LONG)


class FirstRank:
    """Stands in for the context of a rank that is not asked to end."""

    def prune_reason(self) -> None:
        return None


def run(
    step_times_s: list[float], *, least_s: float | None = None
) -> tuple[Any, Ending | None]:
    """Give a loop one step after another until it ends; return its tally."""
    context: Any = FirstRank()
    nothing: Any = None
    longer = replace(TRIAL.measurement, least_s=least_s)
    trial = replace(TRIAL, measurement=longer)
    loop = Loop(context, trial, nothing, nothing, nothing)
    tally = loop._tally
    for step, seconds in enumerate(step_times_s, start=1):
        tally.step, tally.training_s = step, tally.training_s + seconds
        if step > TRIAL.measurement.warmup_steps:
            tally.measured.append(np.array([[0.0, seconds, 0.0, 0.0]]))
        if ending := loop._ending(is_asked=False):
            return tally, ending
    return tally, None


def test_settled_steps_end_after_as_many_as_were_asked() -> None:
    tally, ending = run([0.01] * 300)
    assert (ending, tally.step, tally.num_unsettled) == (Ending.DONE, 26, 0)


def test_steps_that_settle_late_leave_more_of_the_first_out() -> None:
    tally, ending = run([0.01 + 0.02 * 0.95**step for step in range(300)])
    assert ending is Ending.DONE
    assert tally.num_unsettled > 0
    kept = tally.readings.sum(axis=1)[tally.num_unsettled :]
    assert len(kept) >= 20
    assert kept.mean() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("pace_s", [0.01, 1.0])
def test_steps_that_never_settle_end_with_enough_of_them(pace_s: float) -> None:
    tally, ending = run([pace_s * 1.02**step for step in range(300)])
    assert ending is Ending.DONE
    assert len(tally.readings) - tally.num_unsettled >= 20


def test_a_long_trial_goes_on_when_it_has_measured_enough() -> None:
    tally, ending = run([0.01] * 300, least_s=2.0)
    assert ending is Ending.DONE
    assert tally.window_steps == 26
    assert tally.training_s == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("cycle", [1, 4])
def test_ranks_tell_where_the_window_of_a_long_trial_ended(cycle: int) -> None:
    tally, _ = run([0.01] * 26 + [0.04] * 300, least_s=5.0)
    readings = tally.readings[: len(tally.readings) // cycle * cycle]
    columns = later_columns_of([readings], tally, LONG_TRIAL, cycle)
    assert columns["later_differs"] == "unexplained"
    assert columns["window_step_time_s"] == pytest.approx(0.01)
    assert columns["later_step_time_s"] == pytest.approx(0.04, rel=0.05)
    assert not later_columns_of([readings], tally, TRIAL, cycle)

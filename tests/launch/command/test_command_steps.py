from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_specs import command_spec
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.launch.command.steps import StepLog
from scalelab.launch.steady import mean_interval
from scalelab.reading.logs.lines import Report


def trial(**changes: int | TrialKind | str) -> Trial:
    """A trial whose global batch is 8 = 2 samples x 2 ranks x 2 accumulated."""
    asked = {"ranks": 2, "accumulation": 2, "warmup_steps": 0, **changes}
    return command_spec(Path("/tmp/never"), code=Path("/tmp"), **asked).trial


def log(may_repeat: bool = False, **changes: int | TrialKind | str) -> StepLog:
    return StepLog(trial(**changes), may_repeat=may_repeat)


def feed(into: StepLog, *reports: tuple[int, float], every: int = 8) -> StepLog:
    """Report (step, arrival) one at a time, with matching samples."""
    for step, now_s in reports:
        into.take([Report(step=step, samples=step * every)], now_s)
    return into


def test_intervals_between_arrivals_are_steps() -> None:
    columns = feed(log(), (1, 10.0), (2, 10.5), (3, 11.5)).step_columns()
    assert columns == {
        "num_steps": 2,
        "step_time_s": 0.75,
        "throughput_samples_per_s": 8 / 0.75,
        "samples_witness": "log",
    }


def test_samples_of_a_step_are_told_from_a_count() -> None:
    steps = log()
    for step in range(1, 5):
        steps.take([Report(step=step, samples=8)], float(step))
    assert steps.step_columns()["samples_witness"] == "log"
    with refused("other_samples", "4 samples"):
        steps.take([Report(step=5, samples=4)], 5.0)


def test_intervals_over_several_steps_are_divided() -> None:
    steps = log()
    times = [10.0, 15.0, 21.0, 26.0, 32.0, 37.0]
    feed(steps, *((10 * k, time) for k, time in enumerate(times, start=1)))
    columns = steps.step_columns()
    assert columns["num_steps"] == 50
    assert columns["step_time_s"] == pytest.approx(27.0 / 50)
    lo, hi = mean_interval(np.diff(times) / 10)
    assert columns["step_time_lo_s"] == pytest.approx(lo)
    assert columns["step_time_hi_s"] == pytest.approx(hi)


def test_uneven_intervals_weigh_by_their_steps() -> None:
    steps = feed(log(), (1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0), (14, 23.0))
    columns = steps.step_columns()
    assert columns["step_time_s"] == pytest.approx(23 / 13)
    assert columns["step_time_lo_s"] < 23 / 13 < columns["step_time_hi_s"]


def test_steps_before_the_end_of_the_warm_up_are_left_out() -> None:
    steps = feed(log(warmup_steps=2), (1, 0.0), (2, 9.0), (3, 10.0), (4, 11.0))
    assert (steps.intervals.num_steps, steps.intervals.seconds) == (2, 2.0)
    # An interval that began during the warm-up is left out whole.
    steps = feed(log(warmup_steps=5), (4, 0.0), (8, 9.0), (12, 11.0))
    assert (steps.intervals.num_steps, steps.intervals.seconds) == (4, 2.0)


def test_warm_up_counts_from_the_first_step_of_this_attempt() -> None:
    steps = feed(log(warmup_steps=3), (1001, 0.0), (1002, 5.0), (1003, 6.0))
    assert (steps.num_seen, steps.intervals.num_steps) == (3, 0)
    assert feed(steps, (1004, 7.0)).intervals.num_steps == 1


def test_reports_that_arrive_together_share_the_time() -> None:
    steps = feed(log(), (1, 10.0))
    steps.take([Report(step=step) for step in (2, 3, 5)], 12.0)
    assert [row.get("t") for row in steps.rows()] == pytest.approx([0.5, 1, 1.5, 2.5])
    assert (steps.intervals.num_steps, steps.intervals.seconds) == (
        4,
        pytest.approx(2.0),
    )


def test_reports_that_arrive_together_at_first_have_no_times() -> None:
    steps = log()
    steps.take([Report(step=step) for step in (1, 2, 3)], 10.0)
    assert steps.rows() == []
    feed(steps, (4, 11.0))
    rows = steps.rows()
    assert [row.get("t") for row in rows] == [None, None, 3.0, 4.0]
    assert [row["samples"] for row in rows] == [8, 16, 24, 32]
    assert steps.ready_s == 7.0


def test_reports_that_arrive_after_an_evaluation_leave_its_time_with_it() -> None:
    steps = feed(log(), *((step, float(step)) for step in range(1, 5)))
    evaluation = Report(step=None, is_evaluation=True)
    steps.take([evaluation, *(Report(step=step) for step in range(5, 9))], 58.0)
    feed(steps, (9, 59.0), (10, 60.0))
    assert steps.step_columns()["step_time_s"] == 1.0
    assert steps.intervals.num_steps == 5
    assert steps.intervals.evaluation_s() == 50.0
    times = [row.get("t") for row in steps.rows()]
    assert times == [1.0, 2.0, 3.0, 4.0, None, None, None, 58.0, 59.0, 60.0]


def test_own_clock_counts_where_it_is_given() -> None:
    steps = log()
    steps.take([Report(step=1, t=100.0), Report(step=2, t=100.5)], 7.0)
    steps.take([Report(step=3), Report(step=4, t=102.5)], 7.1)
    assert (steps.intervals.num_steps, steps.intervals.seconds) == (3, 2.5)
    rows = steps.rows()
    assert [row.get("t") for row in rows] == [0.5, 1.0, None, 3.0]
    assert [row.get("step_time_s") for row in rows] == [None, 0.5, None, 1.0]
    assert steps.ready_s == 6.5


def test_own_clock_must_not_go_back() -> None:
    steps = log()
    steps.take([Report(step=1, t=5.0)], 0.0)
    message = (
        r"^t went from 5 back to 0\.5 at step 2\. It is a clock of seconds that runs "
        r"through the whole training: do not start it again, or leave t out\.$"
    )
    with pytest.raises(SpecError, match=message):
        steps.take([Report(step=2, t=0.5)], 1.0)


@pytest.mark.parametrize(
    ("steps", "seen"),
    [((1, 2, 3), 3), ((0, 1, 2), 2), ((10, 20), 20), ((501, 502), 2), ((7,), 7)],
)
def test_steps_before_the_first_report_are_counted(
    steps: tuple[Any, ...], seen: int
) -> None:
    reported = log()
    assert reported.num_seen == 0
    assert feed(reported, *((step, float(step)) for step in steps)).num_seen == seen


def test_first_step_began_one_pace_before_its_report() -> None:
    assert feed(log(), (10, 100.0), (20, 105.0)).ready_s == 95.0


def test_rows_wait_until_the_pace_is_known() -> None:
    steps = log()
    steps.take([Report(step=2, metrics={"loss": 1.5, "event": 9.0})], 4.0)
    assert steps.rows() == []
    steps.take([Report(step=4, metrics={"loss": 1.0})], 5.0)
    assert steps.rows() == [
        {"event": "step", "step": 2, "samples": 16, "t": 1.0, "loss": 1.5},
        {
            "event": "step",
            "step": 4,
            "samples": 32,
            "t": 2.0,
            "step_time_s": 0.5,
            "loss": 1.0,
        },
    ]
    assert steps.rows() == []


def test_rows_of_a_command_that_is_over_wait_no_longer() -> None:
    steps = feed(log(), (2, 4.0))
    assert steps.rows(is_over=True) == [
        {"event": "step", "step": 2, "samples": 16, "t": 0.0}
    ]
    assert log().rows(is_over=True) == []


def test_metrics_of_the_same_step_may_follow_it() -> None:
    steps = feed(log(), (1, 1.0), (2, 2.0))
    steps.rows()
    steps.take([Report(step=2, samples=16, metrics={"val_acc": 0.5})], 2.5)
    steps.take([Report(step=None, metrics={"val_loss": 1.0})], 2.6)
    assert steps.rows() == [
        {"event": "evaluation", "step": 2, "samples": 16, "t": 2.0, "val_acc": 0.5},
        {"event": "evaluation", "step": 2, "samples": 16, "t": 2.0, "val_loss": 1.0},
    ]
    assert steps.metrics == {"val_acc": 0.5, "val_loss": 1.0}


def test_metrics_before_the_first_step_belong_to_none() -> None:
    steps = log(kind=TrialKind.CONVERGENCE, target="val_acc >= 0.5")
    steps.take([Report(step=None, metrics={"val_acc": 0.9})], 0.0)
    assert (steps.metrics, steps.reached_after_steps) == ({}, None)


REPEATED = (
    r"^step 2 was reported twice\. Steps must increase, and only rank 0 should write "
    r"them: guard the line with the rank, or write to \$SCALELAB_METRICS, which leads "
    r"nowhere on the other ranks\.$"
)


def test_repeated_step_is_refused() -> None:
    steps = feed(log(), (1, 1.0), (2, 2.0))
    with pytest.raises(SpecError, match=REPEATED):
        steps.take([Report(step=2, samples=16)], 2.1)
    steps = log()
    steps.take([Report(step=2, metrics={"loss": 1.0})], 2.0)
    with pytest.raises(SpecError, match=REPEATED):
        steps.take([Report(step=2, metrics={"loss": 1.1})], 2.1)


def test_progress_bar_may_repeat_a_step() -> None:
    steps = feed(log(may_repeat=True), (1, 1.0), (2, 2.0))
    feed(steps, (2, 2.5), (3, 3.0))
    assert (steps.intervals.num_steps, steps.intervals.seconds) == (2, 2.0)


@pytest.mark.parametrize("may_repeat", [False, True])
def test_steps_that_go_back_are_refused(may_repeat: bool) -> None:
    message = (
        r"^step went from 5 back to 1\. Steps must increase: count optimiser steps "
        r"from the start of the training, not of an epoch, and let only rank 0 write "
        r"them\.$"
    )
    steps = feed(log(may_repeat), (4, 1.0))
    with pytest.raises(SpecError, match=message):
        steps.take([Report(step=5), Report(step=1)], 1.0)


def test_samples_must_follow_from_the_batch_sizes() -> None:
    message = re.escape(
        "the command reported 40 samples in 10 steps; 10 x global_batch_size=8 "
        "(local_batch_size=2 x data_parallel_size=2 x gradient_accumulation_steps=2) "
        "is 80. Likely it counts the samples of one rank, not of all 2, or its steps "
        "ignore gradient accumulation (2 forward passes make one step). The last batch "
        "of an epoch must be full, too (drop_last=True)."
    )
    steps = feed(log(), (10, 1.0), every=4)
    with pytest.raises(SpecError, match=f"^{message}$"):
        feed(steps, (20, 2.0), every=4)


def test_samples_may_be_left_out_or_start_anywhere() -> None:
    steps = log()
    reports = [(1, 108), (2, None), (4, 132), (5, 140)]
    for step, samples in reports:
        steps.take([Report(step=step, samples=samples)], float(step))
    assert steps.num_seen == 5


def test_target_is_reached_at_the_first_value_that_reaches_it() -> None:
    steps = log(kind=TrialKind.CONVERGENCE, target="val_acc >= 0.5")
    feed(steps, (10, 10.0), (20, 20.0))
    steps.take([Report(step=None, metrics={"val_acc": 0.4})], 21.0)
    assert steps.reached_after_steps is None
    steps.take([Report(step=30, metrics={"val_acc": 0.6})], 32.0)
    steps.take([Report(step=40, metrics={"val_acc": 0.7})], 40.0)
    assert steps.reached_after_steps == 30
    # Ten steps of a second before the first report, and 22 s from there.
    assert steps.seconds_to_target() == pytest.approx(32.0)


def test_target_reached_at_the_first_report_has_no_time() -> None:
    steps = log(kind=TrialKind.CONVERGENCE, target="loss <= 1")
    steps.take([Report(step=5, metrics={"loss": 0.5})], 1.0)
    assert (steps.reached_after_steps, steps.seconds_to_target()) == (5, None)


def test_throughput_trials_have_no_target() -> None:
    steps = log(target="loss <= 1")
    steps.take([Report(step=5, metrics={"loss": 0.5})], 1.0)
    assert steps.reached_after_steps is None


def test_measured_steps_are_enough() -> None:
    steps = feed(log(steps=3), (1, 1.0), (2, 2.0), (3, 3.0))
    assert not steps.is_precise(3.0)
    assert feed(steps, (4, 4.0)).is_precise(4.0)


def test_precise_mean_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def is_steady(means: np.ndarray, relative_precision: float) -> bool:
        asked.append(len(means))
        return len(means) >= 30

    monkeypatch.setattr("scalelab.launch.command.steps.is_steady", is_steady)
    steps = log(steps=1000)
    assert not feed(steps, *((k, k / 100) for k in range(1, 22))).is_precise(100.0)
    # The bootstrap is asked once a second only.
    assert not feed(steps, *((k, k / 100) for k in range(22, 40))).is_precise(100.5)
    assert steps.is_precise(101.0)
    assert asked == [20, 38]


def test_steps_that_took_no_time_have_no_throughput() -> None:
    steps = log()
    steps.take([Report(step=k, t=0.0) for k in range(1, 4)], 1.0)
    assert steps.step_columns() == {"num_steps": 2}
    assert log().step_columns() == {"num_steps": 0}

"""Exit codes of sweeps: the first reason of several decides."""

from collections import Counter
from typing import Any

import pytest

from scalelab.inputs.outcome import Outcome
from scalelab.records.control.job_list import JobLine
from scalelab.running.sweep_end import EXIT, EndReason, SweepEnd
from scalelab.scheduling.summary import SweepSummary

JOB = JobLine(name="x-1", job_id="17", num_nodes=1, state="not cancelled")
FAILED = Counter({Outcome.COMPLETED: 7, Outcome.FAILED: 1})
UNFITTING = Counter({Outcome.OUT_OF_MEMORY: 8})
FAILED_FIRST: dict[str, Any] = {
    "unsound": ({"outcome": Outcome.FAILED},),
    "stopped": "the first trial failed its check",
}
REFUSED_FIRST = {**FAILED_FIRST, "unsound": ({"outcome": Outcome.REFUSED},)}


def end(
    *, is_interrupted: bool = False, left_jobs: tuple[JobLine, ...] = (), **summary: Any
) -> SweepEnd:
    return SweepEnd(
        summary=SweepSummary(**summary),
        is_interrupted=is_interrupted,
        left_jobs=left_jobs,
    )


@pytest.mark.parametrize(
    ("ended", "meets_limits", "code"),
    [
        (end(outcomes=Counter({Outcome.COMPLETED: 8})), True, 0),
        (end(outcomes=Counter({Outcome.COMPLETED: 8})), False, 4),
        (end(outcomes=UNFITTING), True, 0),
        (end(outcomes=FAILED), True, 1),
        (end(outcomes=FAILED), False, 4),
        (end(stopped="the budget is spent"), True, 0),
        (end(left_jobs=(JOB,)), True, 3),
        (end(left_jobs=(JOB,), outcomes=FAILED), False, 3),
        (end(**FAILED_FIRST), True, 1),
        (end(**REFUSED_FIRST), True, 2),
        (end(**REFUSED_FIRST, left_jobs=(JOB,)), True, 2),
        (end(**REFUSED_FIRST, is_interrupted=True, left_jobs=(JOB,)), True, 130),
    ],
)
def test_the_first_reason_decides(
    ended: SweepEnd, meets_limits: bool, code: int
) -> None:
    assert EXIT[ended.reason(meets_limits=meets_limits)] == code


def test_each_reason_has_an_exit_code() -> None:
    assert EXIT.keys() == {*EndReason}


def test_only_what_may_hold_measurements_is_answered() -> None:
    assert end().is_to_be_answered
    assert not end(is_interrupted=True).is_to_be_answered
    assert not end(**FAILED_FIRST).is_to_be_answered
    assert end(**FAILED_FIRST, num_resumed=3).is_to_be_answered

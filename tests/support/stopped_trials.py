"""A trial that is stopped and goes on in new processes, beside one that is not."""

from pathlib import Path
from typing import Any

from gang import attempt, run_attempt, stream

from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome


def check_going_on(
    directory: Path,
    trial: Trial,
    whole: Trial | None = None,
    *,
    told_by: str = "weights_hash",
    **parameters: Any,
) -> None:
    """Check that a trial of 32 steps goes on bit by bit after it was stopped.

    Parameters
    ----------
    directory
        Where the attempts are recorded.
    trial
        The trial that is stopped.
    whole
        The trial that is not; None: the same.
    told_by
        What the last evaluation says of the weights.
    **parameters
        Of the workload.
    """
    run_attempt(attempt(directory / "whole" / "001", whole or trial, **parameters))
    halves = directory / "halves"
    stopped = run_attempt(attempt(halves / "001", trial, **parameters), stop_at_step=17)
    assert stopped.outcome is Outcome.PREEMPTED
    run_attempt(attempt(halves / "002", trial, **parameters))

    first = stream(halves / "001", "step")[-1]["step"]
    rows = stream(halves / "002", "step")
    expected = stream(directory / "whole" / "001", "step")
    assert len(expected) == 32 > first
    assert [r["loss"] for r in rows] == [r["loss"] for r in expected[first:]]
    last = [
        stream(directory / path, "evaluation")[-1][told_by]
        for path in ("whole/001", "halves/002")
    ]
    assert last[0] == last[1]

"""Conversion of the end of a Dask task, or of its node, to an attempt's result."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import traceback

from distributed.scheduler import KilledWorker, NoValidWorkerError

from scalelab.errors import LaunchError, SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult

LOST = (
    KilledWorker,
    NoValidWorkerError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)
"""Exceptions of tasks whose worker, or the way to it, was lost."""


def result_of_task(value: str | BaseException) -> AttemptResult:
    """Convert a task's return value or exception to the result of an attempt."""
    if isinstance(value, str):
        return AttemptResult.from_json(json.loads(value))
    if isinstance(value, LOST):
        return AttemptResult(
            outcome=Outcome.NODE_FAIL,
            reason=(
                "The worker of the node was lost, or the connection to it, while it "
                "ran the attempt."
            ),
        )
    outcome = Outcome.NODE_FAIL if isinstance(value, LaunchError) else Outcome.FAILED
    return AttemptResult(
        outcome=outcome,
        reason=f"The node could not run the attempt: {value!r}",
        traceback="".join(traceback.format_exception(value)),
        input_error=str(value) if isinstance(value, SpecError) else None,
    )


def result_of_lost_node(node: str) -> AttemptResult:
    """Return the result of an attempt whose node was lost."""
    return AttemptResult(
        outcome=Outcome.NODE_FAIL,
        reason=f"Node {node} vanished while it ran the attempt.",
    )


def result_of_unresponsive_node(node: str, grace_s: float) -> AttemptResult:
    """Return the result of an attempt whose node did not end its ranks in time."""
    return AttemptResult(
        outcome=Outcome.NODE_FAIL,
        reason=f"Node {node} did not end its ranks within {grace_s:g} s.",
    )

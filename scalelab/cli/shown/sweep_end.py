"""The end of a sweep in words: what was not measured, and what to do."""

from collections.abc import Iterator, Sequence

from scalelab.inputs.lines import ended
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.records.control.job_list import JobLine
from scalelab.running.sweep_end import SweepEnd

MAX_SHOWN = 5


def closing(end: SweepEnd, num_before: int | None) -> Iterator[str]:
    """Yield the lines below a sweep.

    ``num_before`` are the trials there were to run; None where nobody knew.
    """
    summary = end.summary
    if pruned := summary.outcomes.get(Outcome.PRUNED, 0):
        yield f"Ended early by their source (pruned): {counted(pruned, 'trial')}."
    if unfitting := summary.outcomes.get(Outcome.OUT_OF_MEMORY, 0):
        yield f"Did not fit into memory: {counted(unfitting, 'trial')}."

    yield from _failures(end)

    # A canary, and what follows the first trial, is not known before its turn has come.
    ended_here = summary.num_finished - summary.num_resumed
    left = 0 if num_before is None else num_before - ended_here

    left = max(left, len(summary.unfinished))
    if left and (summary.unfinished or end.is_interrupted):
        yield f"Not run: {counted(left, 'trial')}. The same command goes on with them."
    elif end.is_interrupted:
        yield "Interrupted. The same command goes on where this one stopped."


def _failures(end: SweepEnd) -> Iterator[str]:
    summary = end.summary
    unsound = {row["trial_id"] for row in summary.unsound}

    failures = [f for f in summary.failures if f.trial.trial_id not in unsound]
    for failure in failures[:MAX_SHOWN]:
        log = f" Log: {failure.log}" if failure.log else ""
        reason = ended(failure.reason) if log else failure.reason
        yield f"{failure.outcome}: {failure.trial}. {reason}{log}"

    if more := len(failures[MAX_SHOWN:]):
        yield f"... and {counted(more, 'trial')} more."

    if summary.num_failed and (failures or not unsound):
        count = counted(summary.num_failed, "trial")
        why = f": {ended(summary.failures[0].reason)}" if summary.failures else "."
        if set(summary.outcomes) == {Outcome.FAILED}:
            yield f"All {count} failed{why} Fix the script, then sweep --retry-failed."
        else:
            yield f"Not measured: {count}. sweep --retry-failed tries again."


def left_jobs(jobs: Sequence[JobLine]) -> str:
    """Say which jobs may hold nodes still."""
    return (
        f"{counted(len(jobs), 'job')} may hold nodes still, since the batch system did "
        f"not cancel them: {'; '.join(map(str, jobs))}. Cancel them by hand, or run "
        "the same command again once it answers."
    )

"""The status of a run in lines: what is done, what runs, what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.inputs.numerals import counted, device_time

if TYPE_CHECKING:
    from scalelab.running.status import RunStatus

_MAX_SHOWN = 5


def status_lines(status: RunStatus, directory: Path, also: Iterable[str]) -> list[str]:
    """Return the lines that ``scalelab status`` prints of the run in a directory.

    Parameters
    ----------
    also
        Sentences on acceptance and on the search of the run.
    """
    from scalelab.plan.diverged import diverged_in_words
    from scalelab.plan.memory_limits import limits_in_words
    from scalelab.records.control.lease import LOG
    from scalelab.running.detached import waiting_driver_text

    used = device_time(status.used_gpu_s / 3600, status.words.hour)
    driver = status.driver or waiting_driver_text(directory)
    log, more = directory / LOG, len(status.jobs[_MAX_SHOWN:])
    nodes = counted(status.num_nodes or 0, "node")
    devices = counted(status.num_devices or 0, "device")

    lines = [
        f"{directory}: {counted(sum(status.outcomes.values()), 'trial')} ended",
        *(f"  {count:>6,}  {outcome}" for outcome, count in status.outcomes.items()),
        *(f"  {text}" for text in limits_in_words(status.memory_limits)),
        f"  {diverged_in_words(**status.diverged)}" if status.diverged else "",
        f"Device time: {used}",
        f"Driver: {driver or 'none; the sweep is not running'}",
        f"  log: {log}" if status.driver and log.exists() else "",
        f"  up: {nodes} with {devices}" if status.num_nodes else "",
        f"  starts no more trials: {status.stopping}" if status.stopping else "",
        f"The last sweep ended early: {status.stopped}" if status.stopped else "",
        *(
            f"  begun, not ended: {trial_id}, attempt {number}"
            for trial_id, number in status.running[:_MAX_SHOWN]
        ),
        *(f"  {job}" for job in status.jobs[:_MAX_SHOWN]),
        f"  ... and {more} more jobs" if more else "",
        *(f"Waiting: {reason}" for reason in status.waiting[:_MAX_SHOWN]),
        f"Of the last sweep nothing is known: {status.unreadable}"
        if status.unreadable
        else "",
        *also,
    ]
    if status.num_missing:
        lines.append(f"Not run yet: {counted(status.num_missing, 'trial')}")

    lines += [f"  {reason}" for reason in status.reasons[:_MAX_SHOWN]]
    return [*filter(None, lines)]

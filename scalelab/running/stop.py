"""Stop the driver of a run, wherever it is."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from scalelab.errors import ClusterError
from scalelab.inputs.numerals import counted
from scalelab.records.control.lease import LEASE, Holder, read_holder, signal_holder
from scalelab.records.control.stop_request import request_stop
from scalelab.records.store import RunReader

# Seconds that a driver on this host may take to notice a stop request.
HEARD_WITHIN_S = 15.0
# The same on another host: network file systems show changes up to a minute late.
HEARD_FROM_AFAR_WITHIN_S = 75.0
QUICK_S = 3.0
# Seconds that a driver may take to end its trials and release its nodes.
ENDED_WITHIN_S = 120.0
_LOOK_AGAIN_S = 0.1


def stop(run: Path, *, at_once: bool = False) -> str:
    """Stop the driver of a run and return the result in words."""
    reader = RunReader.open(run)
    lease = reader.directory / LEASE

    holder = read_holder(lease)
    if holder is None:
        return _cancel_waiting(reader.directory) or (
            f"No driver runs {run}; there is nothing to stop. A process that writes "
            "its report after the last trial ends by itself."
        )

    request = request_stop(reader.directory, at_once=at_once)
    patience_s = HEARD_WITHIN_S if holder.is_here else HEARD_FROM_AFAR_WITHIN_S
    if not _becomes(lambda: not request.exists() or _has_ended(lease), patience_s):
        was_sent = at_once and signal_holder(lease, signal.SIGTERM)
        if was_sent and _becomes(lambda: _has_ended(lease), ENDED_WITHIN_S):
            return f"Stopped: {holder.text}, was sent SIGTERM and has ended the sweep."
        raise ClusterError(
            f"{run} is held by {holder.text}, which does not answer. The request "
            f"stands: it stops as soon as it goes on. {_by_force(holder)}"
        )

    found = _cancel_waiting(reader.directory)
    cancelled = f" {found}" if found else ""

    driver = f"process {holder.pid} on host {holder.host}"
    if _becomes(lambda: _has_ended(lease), ENDED_WITHIN_S if at_once else QUICK_S):
        request.unlink(missing_ok=True)
        return (
            f"Stopped: {driver} has ended the sweep. The same command goes on."
            f"{cancelled}"
        )

    if at_once:
        raise ClusterError(
            f"{driver} ends what runs, and has not finished within "
            f"{ENDED_WITHIN_S:g} s. {_by_force(holder)}"
        )

    num_running = len(reader.running())
    trials = counted(num_running, "running trial")
    work = f"finishes {trials}" if num_running else "gives its nodes back"

    return (
        f"Stopping: {driver} starts no more trials and {work}. See: scalelab status "
        f"{run}. To end at once: scalelab stop {run} --now.{cancelled}"
    )


def _cancel_waiting(run: Path) -> str | None:
    from scalelab.cluster.batch.queue import cancel, waiting_driver

    if (found := waiting_driver(run)) is None:
        return None

    record, _ = found
    cancel(record)
    record.leave_queue(run)

    return (
        f"Cancelled: job {record.job_id} ({record.name}), which waited in the queue to "
        f"run the sweep of {run}."
    )


def _by_force(holder: Holder) -> str:
    if holder.is_here:
        return f"`kill -9 {holder.pid}` ends it; the next sweep puts in order what ran."
    down = f"If host {holder.host} is down, sweep" if holder.host else "Sweep"
    return (
        f"{down} again: after half a minute without a sign of life the run is taken "
        "over."
    )


def _has_ended(lease: Path) -> bool:
    return read_holder(lease) is None


def _becomes(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True

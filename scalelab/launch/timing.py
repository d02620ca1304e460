"""The time limits of an attempt on a node; its start, end and duration."""

import math
import socket
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

from scalelab.experiment.program import CommandProgram, Program, StopRequest
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.launch.steady import SETTLES_WITHIN_S
from scalelab.records.attempt import AttemptResult, AttemptSpec

_GRACE_S = 2.0  # between SIGTERM and SIGKILL
# Frameworks on a busy network file system are imported for minutes.
_START_UP_S = 600.0
# Ranks of a workload finish about a second of steps and write a checkpoint.
_STOP = StopRequest(signal="SIGTERM", grace_s=20.0)
_STALL_FLOOR_S = 30.0  # without progress, of a workload
# Seconds without a report after which a command counts as stalled, unless the user has
# set the time: between steps, and between steps where it evaluates, or writes a file
# that libraries hold back, as TensorBoard's for two minutes. They are longer than for
# built-in workloads, whose ranks also report while they load data, evaluate and save.
_BETWEEN_STEPS_S = 60.0
_BETWEEN_LATE_REPORTS_S = 300.0
# Only node 0 reads the reports of a command; it ends the others through the driver.
_NEVER_S = 1e6
# The wall clock and the monotonic one may differ by this much over an attempt.
_CLOCK_TOLERANCE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits at which an attempt is ended although nothing has failed."""

    timeout_s: float
    stall_factor: float
    stall_floor_s: float
    start_up_s: float  # of silence before the first step
    grace_s: float
    # How the processes are asked to save what they have, and when because the walltime
    # is up soon, on the monotonic clock.
    stop: StopRequest | None = None
    deadline_s: float = math.inf

    @classmethod
    def of(cls, spec: AttemptSpec, node_rank: int = 0) -> Self:
        """Return the limits of an attempt's processes on a node."""
        program, stop, deadline_s = spec.program, None, math.inf
        # Ranks that can save do not die of SIGTERM, and need not live on after it.
        grace_s = 0.0 if spec.trial.saves_checkpoints else _GRACE_S

        start_up_s, between_steps_s = _silences(program, spec.trial)
        if isinstance(program, CommandProgram):
            stop, grace_s = program.stop, _GRACE_S
            start_up_s = start_up_s if node_rank == 0 else _NEVER_S
            if stop is not None and spec.deadline_s is not None:
                deadline_s = spec.deadline_s - stop.grace_s
        elif spec.trial.saves_checkpoints:
            stop = _STOP

        return cls(
            timeout_s=spec.trial.measurement.timeout_s or math.inf,
            stall_factor=spec.stall_factor,
            stall_floor_s=between_steps_s,
            start_up_s=start_up_s,
            grace_s=grace_s,
            stop=stop,
            deadline_s=deadline_s,
        )


def longest_s(program: Program, trial: Trial) -> float:
    """Return the seconds of an attempt that uses up each of its time limits.

    Without ``measure.timeout`` evaluations come on top, and silences of a program whose
    steps have become slower.
    """
    start_up_s, between_steps_s = _silences(program, trial)
    silent_s = start_up_s + trial.max_steps * between_steps_s
    if trial.kind is TrialKind.THROUGHPUT:
        silent_s += max(SETTLES_WITHIN_S, trial.measurement.least_s or 0.0)
    return min(silent_s, trial.measurement.timeout_s or math.inf)


def _silences(program: Program, trial: Trial) -> tuple[float, float]:
    """Return the seconds without a report that may pass before and between steps."""
    measurement = trial.measurement
    between_steps_s = measurement.stall_timeout_s
    start_up_s = measurement.start_up_timeout_s or max(
        _START_UP_S, between_steps_s or 0.0
    )
    if between_steps_s:
        return start_up_s, between_steps_s
    if not isinstance(program, CommandProgram):
        return start_up_s, _STALL_FLOOR_S

    source = program.metrics
    is_late = trial.kind is not TrialKind.THROUGHPUT or any(
        (source.evaluation, source.csv, source.tensorboard)
    )
    return start_up_s, _BETWEEN_LATE_REPORTS_S if is_late else _BETWEEN_STEPS_S


class Timing:
    """Measures an attempt by the wall clock and the monotonic clock, from now on.

    ``ready_s`` is when rank 0 began its first step, by the monotonic clock, if known.
    """

    def __init__(self) -> None:
        self._started_at = datetime.now(UTC)
        self._started_s = time.monotonic()
        self.ready_s: float | None = None

    def complete(
        self, spec: AttemptSpec, node_rank: int, result: AttemptResult
    ) -> AttemptResult:
        """Return the result with hosts, times and held device-seconds added."""
        ended_at = datetime.now(UTC)
        elapsed_s = time.monotonic() - self._started_s

        known: dict[str, Any] = {"hosts": [socket.gethostname()]}
        if node_rank == 0:
            known |= {
                "started_at": self._started_at.isoformat(),
                "ended_at": ended_at.isoformat(),
                "allocated_gpu_s": elapsed_s * spec.placement.world_size,
            }
            if self.ready_s is not None:
                known["start_up_s"] = self.ready_s - self._started_s

        result = replace(result, measurements={**result.measurements, **known})
        drift_s = (ended_at - self._started_at).total_seconds() - elapsed_s
        is_steady = abs(drift_s) <= _CLOCK_TOLERANCE_S
        return result if is_steady else with_validity(result, "unsteady_clock")


def with_validity(result: AttemptResult, reason: str) -> AttemptResult:
    """Return the result with one more reason that excludes it from fits."""
    known = result.measurements.get("validity", ())
    measurements = {**result.measurements, "validity": [*known, reason]}
    return replace(result, measurements=measurements)

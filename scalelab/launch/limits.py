"""The time limits of an attempt on one node, and which of them is up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scalelab.experiment.program import CommandProgram, StopRequest
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.stall import Member, StallWatch
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Time limits at which an attempt is ended although nothing has failed.

    Parameters
    ----------
    timeout_s
        Seconds from the launch; None: never.
    start_up_s
        Seconds that an attempt may be silent before its first step.
    stop
        How the processes are asked to save what they have; None: they are not.
    deadline_s
        When to ask so because the walltime is up soon, on the monotonic clock; None:
        never.
    """

    timeout_s: float | None
    stall_factor: float
    stall_floor_s: float
    start_up_s: float
    grace_s: float
    stop: StopRequest | None = None
    deadline_s: float | None = None

    @classmethod
    def of(cls, spec: AttemptSpec, node_rank: int = 0) -> Limits:
        """Return the limits of an attempt's processes on a node."""
        program, measurement = spec.program, spec.trial.measurement
        floor_s, stop, deadline_s = _STALL_FLOOR_S, None, None
        # Ranks that can save do not die of SIGTERM, and need not live on after it.
        grace_s = 0.0 if spec.trial.saves_checkpoints else _GRACE_S
        start_up_s = measurement.start_up_timeout_s or max(
            _START_UP_S, spec.stall_floor_s or 0.0
        )
        if isinstance(program, CommandProgram):
            source, stop, grace_s = program.metrics, program.stop, _GRACE_S
            is_late = spec.trial.kind is not TrialKind.THROUGHPUT or any(
                (source.evaluation, source.csv, source.tensorboard)
            )
            floor_s = _BETWEEN_LATE_REPORTS_S if is_late else _BETWEEN_STEPS_S
            start_up_s = start_up_s if node_rank == 0 else _NEVER_S
            if stop is not None and spec.deadline_s is not None:
                deadline_s = spec.deadline_s - stop.grace_s
        elif spec.trial.saves_checkpoints:
            stop = _STOP
        return cls(
            timeout_s=measurement.timeout_s,
            stall_factor=spec.stall_factor,
            stall_floor_s=spec.stall_floor_s or floor_s,
            start_up_s=start_up_s,
            grace_s=grace_s,
            stop=stop,
            deadline_s=deadline_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """How an attempt ends because a time limit is up.

    Parameters
    ----------
    grace_s
        Seconds between SIGTERM and SIGKILL; None: as the limits say.
    saves
        The processes are asked to save what they have.
    """

    result: AttemptResult
    grace_s: float | None = None
    saves: bool = False


class Deadlines:
    """The time limits of an attempt that has just been launched."""

    def __init__(self, limits: Limits, stall_watch: StallWatch) -> None:
        self._limits = limits
        self._stall_watch = stall_watch
        self._time = stall_watch.time
        self._started_s = time.monotonic()

    def _fixed(self) -> Iterator[tuple[float, Due]]:
        """Yield the seconds until a limit is up, and what is due then."""
        limits = self._limits
        if (timeout_s := limits.timeout_s) is not None:
            reason = f"did not end within timeout_s={timeout_s:g} s"
            result = AttemptResult(outcome=Outcome.TIMED_OUT, reason=reason)
            yield self._time.left_s(self._started_s, timeout_s), Due(result=result)
        if limits.deadline_s is not None:
            reason = "Asked to end: the walltime of its nodes is nearly up."
            result = AttemptResult(outcome=Outcome.PREEMPTED, reason=reason)
            left_s = limits.deadline_s - time.monotonic()
            yield left_s, Due(result=result, saves=True)

    def left_s(self) -> float:
        """Return the seconds until a limit may be up."""
        waking_s = self._time.of(time.monotonic())
        stall_s = self._stall_watch.next_look_s(waking_s) - waking_s
        return min([stall_s, *(left_s for left_s, _ in self._fixed())])

    def due(
        self, live: Mapping[int, Member], heard_s: float, waking_s: float
    ) -> Due | None:
        """Return what is due by now; None: nothing is."""
        for left_s, due in self._fixed():
            if left_s <= 0:
                return due
        stall = self._stall_watch.find(live, heard_s, waking_s)
        return Due(result=stall, grace_s=0) if stall else None

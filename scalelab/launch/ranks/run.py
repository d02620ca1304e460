"""Runs one node's ranks of an attempt of a workload."""

from __future__ import annotations

from scalelab.experiment.program import StopRequest
from scalelab.launch.ending import Cancellation, Limits, start_up_limit_s
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import STACK_DUMP_SIGNAL, LaunchRequest, ProcessRequest
from scalelab.launch.ranks.server_process import ServerProcess
from scalelab.launch.supervision import Supervisor
from scalelab.records.attempt import AttemptResult, AttemptSpec

# Time to finish about a second of steps and to write a checkpoint.
_STOP = StopRequest(signal="SIGTERM", grace_s=20.0)
_STALL_FLOOR_S = 30.0  # without progress, of a built-in workload


def rank_limits(spec: AttemptSpec, grace_s: float) -> Limits:
    """Return the time limits of the ranks of a workload."""
    saves = spec.trial.saves_checkpoints
    return Limits(
        timeout_s=spec.trial.measurement.timeout_s,
        stall_factor=spec.stall_factor,
        stall_floor_s=spec.stall_floor_s or _STALL_FLOOR_S,
        start_up_s=start_up_limit_s(spec),
        # Ranks that can save do not die of SIGTERM, and need not live on after it.
        grace_s=0.0 if saves else grace_s,
        stop=_STOP if saves else None,
    )


def run_ranks(
    spec: AttemptSpec,
    processes: tuple[ProcessRequest, ...],
    *,
    server: ServerProcess,
    cancellation: Cancellation,
    grace_s: float,
) -> tuple[AttemptResult, float | None]:
    """Run a node's ranks until all of them have ended.

    Returns
    -------
    result : AttemptResult
        The result of this node's ranks.
    ready_s : float or None
        When the first step began, by the monotonic clock.
    """
    board = ProgressBoard(len(processes))
    try:
        supervisor = Supervisor(
            channel=server.launch(LaunchRequest(processes=processes), board),
            server=server.descriptor,
            explain_death=server.explain_death,
            ranks=[process.rank for process in processes],
            board=board,
            limits=rank_limits(spec, grace_s),
            log=spec.files.log,
            device_type=spec.device_type,
            stack_dump_signal=STACK_DUMP_SIGNAL,
        )
        supervisor.watch(
            cancellation.descriptor,
            lambda: supervisor.cancel(
                cancellation.reason or "", saves=cancellation.saves
            ),
        )
        return supervisor.supervise(), board.ready_s(0)
    finally:
        board.close()

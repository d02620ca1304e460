"""Runs one node's processes of an attempt whose program is a command."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.verdict import from_command_exit
from scalelab.launch.command.watch import CommandWatch, command_limits
from scalelab.launch.ending import Cancellation
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import LaunchRequest
from scalelab.launch.ranks.server_process import ServerProcess
from scalelab.launch.rendezvous import Meeting
from scalelab.launch.supervision import Supervisor
from scalelab.records.attempt import AttemptResult


def run_command(
    attempt: CommandAttempt,
    meeting: Meeting,
    *,
    address: str,
    server: ServerProcess,
    cancellation: Cancellation,
    grace_s: float,
) -> tuple[AttemptResult, float | None]:
    """Run a node's processes of a command until all of them have ended.

    Returns
    -------
    result : AttemptResult
        The result of this node's processes.
    ready_s : float or None
        When the first step began, by the monotonic clock.
    """
    spec = attempt.spec
    # Any node may be the first to write there.
    attempt.output_directory.mkdir(exist_ok=True)
    processes = attempt.requests(meeting, address)
    with ExitStack() as stack:
        board = ProgressBoard(len(processes))
        stack.callback(board.close)
        watch = None
        limits = command_limits(spec, attempt.node_rank, grace_s)
        if attempt.node_rank == 0:
            watch = CommandWatch(attempt, board, limits.start_up_s, meeting)
            stack.callback(watch.close)
        supervisor = Supervisor(
            channel=server.launch(LaunchRequest(processes=processes), board),
            server=server.descriptor,
            explain_death=server.explain_death,
            ranks=attempt.ranks,
            board=board,
            limits=limits,
            log=spec.files.log,
            device_type=spec.device_type,
            stack_dump_signal=None,
            explain_exit=partial(
                from_command_exit, code=attempt.program.code_directory
            ),
            conclude=watch.conclude if watch else lambda rank: None,
        )
        if watch is not None:
            watch.attach(supervisor)
        result = _supervise(supervisor, cancellation, watch)
        if watch is None:
            return result, None
        return watch.explained(result), watch.ready_s


def _supervise(
    supervisor: Supervisor, cancellation: Cancellation, watch: CommandWatch | None
) -> AttemptResult:
    def cancel() -> None:
        reason = cancellation.reason or ""
        if watch is not None and cancellation.outcome is Outcome.PRUNED:
            supervisor.end(watch.pruned(reason), saves=True)
        else:
            supervisor.cancel(reason, saves=cancellation.saves)

    supervisor.watch(cancellation.descriptor, cancel)
    return supervisor.supervise()

"""Runs one node's share of a command's attempt."""

from __future__ import annotations

from contextlib import ExitStack

from scalelab.launch.command.attempt import command_requests
from scalelab.launch.command.verdict import from_command_exit
from scalelab.launch.command.watch import CommandWatch, command_limits
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import LaunchRequest
from scalelab.launch.ranks.server_process import ServerProcess
from scalelab.launch.supervision import Cancellation, Supervisor
from scalelab.launch.timing import with_validity
from scalelab.records.attempt import AttemptResult, AttemptSpec


def run_command(
    spec: AttemptSpec,
    node_rank: int,
    *,
    rendezvous: str,
    address: str,
    server: ServerProcess,
    cancellation: Cancellation,
    grace_s: float,
) -> tuple[AttemptResult, float | None]:
    """Run a node's processes of a command until all of them have ended.

    Parameters
    ----------
    spec
        The attempt; its program is a command.
    node_rank
        Which share of its placement this node runs. The node of share 0 follows what
        the command reports; the others only supervise.
    rendezvous
        Where the ranks meet, ``tcp://address:port``.
    address
        This node's address.
    server
        Starts the processes.
    cancellation
        Ends them.
    grace_s
        Seconds between SIGTERM and SIGKILL.

    Returns
    -------
    result : AttemptResult
        This node's word.
    ready_s : float or None
        When the first step began, by the monotonic clock.

    Raises
    ------
    SpecError
        If the command or its metrics are wrong.
    LaunchError
        If the node cannot start processes or watch files.
    """
    processes = command_requests(
        spec, node_rank, rendezvous=rendezvous, address=address
    )
    with ExitStack() as stack:
        board = ProgressBoard(len(processes))
        stack.callback(board.close)
        watch = None
        limits = command_limits(spec, node_rank, grace_s)
        if node_rank == 0:
            ranks = [process.rank for process in processes]
            watch = CommandWatch(spec, ranks, board, limits.start_up_s)
            stack.callback(watch.close)
        supervisor = Supervisor(
            channel=server.launch(LaunchRequest(processes=processes), board),
            server=server.descriptor,
            explain_death=server.explain_death,
            ranks=[process.rank for process in processes],
            board=board,
            limits=limits,
            log=spec.files.log,
            device_type=spec.device_type,
            stack_dump_signal=None,
            explain_exit=from_command_exit,
            conclude=watch.conclude if watch else lambda rank: None,
        )
        if watch is not None:
            watch.attach(supervisor)
        result = _supervise(supervisor, cancellation)
        if watch is None:
            return result, None
        return watch.explained(result), watch.ready_s


def _supervise(supervisor: Supervisor, cancellation: Cancellation) -> AttemptResult:
    supervisor.watch(
        cancellation.descriptor,
        lambda: supervisor.cancel(cancellation.reason or ""),
    )
    result = supervisor.supervise()
    if supervisor.unpinned:
        return with_validity(result, "unexpected_placement")
    return result

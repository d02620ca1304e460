"""What a process does between its fork from the rank server and its end."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from scalelab.launch import rendezvous
from scalelab.launch.command_keeper import keep
from scalelab.launch.lineage import bind_future_forks, die_with_parent
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import (
    STACK_DUMP_SIGNAL,
    CommandTask,
    LaunchRequest,
    ProcessRequest,
    RankTask,
    StoreTask,
    send,
)
from scalelab.launch.verdict import from_exception
from scalelab.records.attempt import AttemptResult, AttemptSpec
from scalelab.training.context import RankIdentity

_OOM_SCORE = "500"


@dataclass(frozen=True, kw_only=True, slots=True)
class FreshInterpreter:
    """How a rank starts that cannot be a fork of the server.

    Parameters
    ----------
    argv
        Its command line.
    reason
        Why it cannot.
    """

    argv: tuple[str, ...]
    reason: str


def become(
    process: ProcessRequest,
    channel: socket.socket,
    board: int,
    *,
    parent_pid: int,
    fresh: FreshInterpreter | None,
) -> NoReturn:
    """Turn a newly forked process into what was asked for; it never returns.

    Parameters
    ----------
    process
        What was asked for.
    channel
        The attempt's channel, the server's end.
    board
        Descriptor of the attempt's progress board.
    parent_pid
        The server's process id.
    fresh
        A rank's own interpreter, where it needs one.
    """
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(parent_pid)
        _settle(process, channel)
        match process.task:
            case CommandTask(argv=argv):
                keep(argv, parent_pid)
            case RankTask() if fresh is not None:
                os.write(2, f"scalelab: not forked: {fresh.reason}\n".encode())
                os.execv(fresh.argv[0], fresh.argv)
            case RankTask() as task:
                status = _run_rank(process, task, channel, board)
            case StoreTask(address=address):
                port = rendezvous.serve_store(address)
                send(channel, {"kind": "store", "port": port})
                signal.pause()
    except BaseException as error:
        _report_failure(process, channel, error)
    finally:
        os._exit(status)


def _settle(process: ProcessRequest, channel: socket.socket) -> None:
    """Give the process its environment, log, working directory and cores."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Where memory runs out, a rank shall go, not its server or the node's agent.
    Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    os.environ.update(process.env)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if process.log is not None:
        log = os.open(process.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    if process.directory is not None:
        os.chdir(process.directory)
    if process.cores:
        try:
            os.sched_setaffinity(0, process.cores)
        except OSError:
            send(channel, {"kind": "unpinned", "rank": process.rank})


def _run_rank(
    process: ProcessRequest, task: RankTask, channel: socket.socket, board: int
) -> int:
    """Call the rank's entry and send its verdict; return the exit status."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(2)
    faulthandler.register(STACK_DUMP_SIGNAL, 2)
    bind_future_forks()
    torch.set_num_threads(process.threads)
    sys.path[:0] = process.search_path
    spec = AttemptSpec.from_json(task.spec)
    identity = RankIdentity(**task.identity)
    progress = ProgressBoard(identity.local_world_size, board).reporter(task.row)
    try:
        result = resolve(task.entry)(spec, identity, task.rendezvous, progress)
        sys.stdout.flush()
        values = None if result is None else result.to_json()
        send(channel, {"kind": "returned", "rank": process.rank, "result": values})
    except BaseException as error:
        _report_failure(process, channel, error, spec.device_type)
        return 1
    return 0


def resolve(name: str) -> Callable[..., AttemptResult | None]:
    """Return the function that ``module:function`` names."""
    module, _, function = name.partition(":")
    entry: Callable[..., AttemptResult | None] = getattr(
        importlib.import_module(module), function
    )
    return entry


def _report_failure(
    process: ProcessRequest,
    channel: socket.socket,
    error: BaseException,
    device_type: str = "cpu",
) -> None:
    failed_at_s = time.monotonic()
    # The frames of this module tell a reader nothing.
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    # A full disk may refuse the log: the agent must hear of the failure all the same.
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()
    failure = from_exception(process.rank, failed_at_s, error, device_type)
    with suppress(OSError):
        send(channel, {"kind": "failed", "failure": failure.to_json()})


def fresh_interpreter(
    request: int, channel: int, board: int, *, index: int, reason: str
) -> FreshInterpreter:
    """Return how to start a rank in an interpreter of its own.

    Parameters
    ----------
    request, channel, board
        Descriptors the rank inherits.
    index
        Which of the processes of the request it is.
    reason
        Why it needs one.
    """
    for descriptor in (request, channel, board):
        os.set_inheritable(descriptor, True)
    descriptors = [str(each) for each in (request, channel, board, index)]
    return FreshInterpreter(
        argv=(sys.executable, "-m", "scalelab.launch.rank_process", *descriptors),
        reason=reason,
    )


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one rank of a launch request that was inherited with the descriptors."""
    parser = ArgumentParser(prog="python -m scalelab.launch.rank_process")
    for name in ("request", "channel", "board", "index"):
        parser.add_argument(name, type=int)
    given: Any = parser.parse_args(arguments)
    process = LaunchRequest.from_memory(given.request).processes[given.index]
    assert isinstance(process.task, RankTask)
    channel = socket.socket(fileno=given.channel)
    os._exit(_run_rank(process, process.task, channel, given.board))


if __name__ == "__main__":
    main()

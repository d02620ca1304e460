"""The life of a forked process, from its fork by the rank server to its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

from scalelab.launch import rendezvous
from scalelab.launch.command.command_supervisor import supervise_command
from scalelab.launch.process_tree import die_with_parent
from scalelab.launch.protocol import (
    CommandTask,
    ProcessRequest,
    RankTask,
    StoreTask,
    send,
)
from scalelab.launch.ranks.rank_process import report_failure, run_rank

_OOM_SCORE = "500"


class FreshInterpreter(NamedTuple):
    """Why a rank cannot be a fork, and what its own interpreter inherits.

    That is the descriptor of the request, and its position in it.
    """

    request: int
    position: int
    reason: str


def become(
    process: ProcessRequest,
    channel: socket.socket,
    board: int,
    parent_pid: int,
    fresh: FreshInterpreter | None,
) -> NoReturn:
    """Run the task of a newly forked process in it; this never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(parent_pid)
        _prepare(process, channel)
        match process.task:
            case CommandTask(argv=argv):
                supervise_command(argv, parent_pid)
            case RankTask() if fresh is not None:
                os.write(2, f"scalelab: not forked: {fresh.reason}\n".encode())
                inherited = (fresh.request, channel.fileno(), board)
                for descriptor in inherited:
                    os.set_inheritable(descriptor, True)
                words = [sys.executable, "-m", "scalelab.launch.ranks.rank_process"]
                words += map(str, (*inherited, fresh.position))
                os.execv(sys.executable, words)
            case RankTask() as task:
                status = run_rank(process, task, channel, board)
            case StoreTask(address=address):
                port = rendezvous.serve_store(address)
                send(channel, {"kind": "store", "port": port})
                signal.pause()
    except BaseException as error:
        report_failure(process, channel, error)
    finally:
        os._exit(status)


def _prepare(process: ProcessRequest, channel: socket.socket) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The kernel kills this process first where memory runs out, not server or agent.
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

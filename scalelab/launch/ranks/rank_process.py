"""A rank of a workload, in a process of its own."""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

from scalelab.launch.process_tree import bind_future_forks
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import (
    STACK_DUMP_SIGNAL,
    ProcessRequest,
    RankIdentity,
    RankTask,
    from_memory,
    send,
)
from scalelab.launch.ranks.failure_report import report_failure
from scalelab.launch.ranks.stop_signal import heed_stop_signal
from scalelab.records.attempt import AttemptResult, AttemptSpec


def run_rank(
    process: ProcessRequest, task: RankTask, channel: socket.socket, board: int
) -> int:
    """Call the rank's entry, send its result to the agent, return the exit status."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(2)
    faulthandler.register(STACK_DUMP_SIGNAL, 2)
    bind_future_forks()
    sys.path[:0] = process.search_path
    spec = AttemptSpec.from_json(task.spec)
    identity = RankIdentity(**task.identity)
    progress = ProgressBoard(task.row + 1, board).reporter(task.row)
    if spec.trial.saves_checkpoints:
        heed_stop_signal()
    try:
        result = resolve(task.entry)(spec, identity, task.rendezvous, progress)
        sys.stdout.flush()
        values = None if result is None else result.to_json()
        send(channel, {"kind": "returned", "rank": process.rank, "result": values})
    except BaseException as error:
        report_failure(process, channel, error, spec)
        return 1
    return 0


def resolve(name: str) -> Callable[..., AttemptResult | None]:
    """Return the function that ``module:function`` names."""
    module, _, function = name.partition(":")
    entry: Callable[..., AttemptResult | None] = getattr(
        importlib.import_module(module), function
    )
    return entry


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one rank of a launch request that was inherited with the descriptors."""
    parser = ArgumentParser(prog="python -m scalelab.launch.ranks.rank_process")
    for name in ("request", "channel", "board", "index"):
        parser.add_argument(name, type=int)
    given: Any = parser.parse_args(arguments)
    process = from_memory(given.request)[given.index]
    assert isinstance(process.task, RankTask)
    channel = socket.socket(fileno=given.channel)
    os._exit(run_rank(process, process.task, channel, given.board))


if __name__ == "__main__":
    main()

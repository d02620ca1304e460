"""A rank of a workload, in a process of its own."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

from scalelab.errors import SpecError
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import trainer_of
from scalelab.launch.process_tree import bind_future_forks, heed_stop_signal
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import (
    STACK_DUMP_SIGNAL,
    ProcessRequest,
    RankIdentity,
    RankTask,
    from_memory,
    send,
)
from scalelab.launch.verdict import OutcomeOf, from_exception
from scalelab.records.attempt import AttemptSpec


def report_failure(
    process: ProcessRequest,
    channel: socket.socket,
    error: BaseException,
    spec: AttemptSpec | None = None,
) -> None:
    """Write an error to the log of the process and send it to the node's agent.

    ``spec`` is the attempt of a rank; None: the process is none.
    """
    failed_at_s = time.monotonic()
    # The first frame is that of ScaleLab's own caller.
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    # A full disk may refuse the log: the agent must hear of the failure all the same.
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()
    outcome_of: OutcomeOf | None = None
    if spec is not None:
        with suppress(SpecError):  # it cannot be asked; the error itself is reported
            outcome_of = trainer_of(spec.program.name)[0].outcome_of
    failure = from_exception(
        process.rank,
        failed_at_s,
        error,
        spec.device_type if spec else "cpu",
        next(iter(process.search_path), None),
        outcome_of=outcome_of,
    )
    with suppress(OSError):
        send(channel, {"kind": "failed", "failure": failure.to_json()})


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
        result = imported(task.entry)(spec, identity, task.rendezvous, progress)
        sys.stdout.flush()
        values = None if result is None else result.to_json()
        send(channel, {"kind": "returned", "rank": process.rank, "result": values})
    except BaseException as error:
        report_failure(process, channel, error, spec)
        return 1
    return 0


def main() -> NoReturn:
    """Run one rank of a launch request that was inherited with the descriptors."""
    request, channel, board, index = map(int, sys.argv[1:])
    process = from_memory(request)[index]
    assert isinstance(process.task, RankTask)
    os._exit(run_rank(process, process.task, socket.socket(fileno=channel), board))


if __name__ == "__main__":
    main()

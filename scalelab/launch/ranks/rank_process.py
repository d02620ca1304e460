"""A rank of a workload, in a process of its own or in this one."""

import faulthandler
import os
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from scalelab.errors import SpecError
from scalelab.inputs.plain_files import make_folder
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import Trainer, trainer_of
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
from scalelab.launch.rendezvous import file_rendezvous, network_environment
from scalelab.launch.timing import Timing
from scalelab.launch.verdict import NO_RESULT, OutcomeOf, from_exception
from scalelab.records.attempt import AttemptResult, AttemptSpec, write_result


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
        send(channel, {"kind": "failed", "failure": asdict(failure)})


def run_rank(
    process: ProcessRequest, task: RankTask, channel: socket.socket, board: int
) -> int:
    """Call the rank's entry, send its result to the agent, return the exit status."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(2)
    faulthandler.register(STACK_DUMP_SIGNAL, 2)
    bind_future_forks()
    sys.path[:0] = process.search_path
    progress = ProgressBoard(task.row + 1, board).reporter(task.row)

    if task.spec.trial.saves_checkpoints:
        heed_stop_signal()

    try:
        entry = imported(task.entry)
        result = entry(task.spec, task.identity, task.rendezvous, progress)
        sys.stdout.flush()
        values = None if result is None else result.to_json()
        send(channel, {"kind": "returned", "rank": process.rank, "result": values})
    except BaseException as error:
        report_failure(process, channel, error, task.spec)
        return 1

    return 0


def main() -> NoReturn:
    """Run one rank of a launch request that was inherited with the descriptors."""
    request, channel, board, index = map(int, sys.argv[1:])
    process = from_memory(request)[index]
    assert isinstance(process.task, RankTask)
    os._exit(run_rank(process, process.task, socket.socket(fileno=channel), board))


def run_in_process(spec: AttemptSpec, trainer: Trainer) -> AttemptResult:
    """Run an attempt of one rank here, without a fork or a supervisor.

    Exceptions are not caught.
    """
    if spec.placement.world_size != 1:
        raise SpecError(
            f"{spec.attempt_id} has {spec.placement.world_size} ranks; one process can "
            "hold 1. Debug the trial with gpus: [1].",
            code="several_ranks",
        )

    timing = Timing()
    make_folder(Path(spec.directory), below=spec.files.run)
    with TemporaryDirectory(prefix="scalelab-") as directory:
        meeting = file_rendezvous(Path(directory) / "store")
        os.environ.update(network_environment(meeting, "127.0.0.1"))
        identity = RankIdentity(
            rank=0,
            local_rank=0,
            world_size=1,
            local_world_size=1,
            node_rank=0,
            num_nodes=1,
        )

        board = ProgressBoard(1)
        try:
            entry = imported(trainer.entry)
            returned = entry(spec, identity, meeting, board.reporter(0))
        finally:
            trainer.leave_process()

        timing.ready_s = board.ready_s(0)
        board.close()

    result = timing.complete(spec, 0, returned or NO_RESULT)
    write_result(spec.files, result)
    return result


if __name__ == "__main__":
    main()

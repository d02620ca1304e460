"""Runs an attempt of one rank in this process, where a debugger can follow it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from scalelab.errors import SpecError
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import Trainer
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import RankIdentity
from scalelab.launch.rendezvous import file_rendezvous, network_environment
from scalelab.launch.timing import Timing
from scalelab.launch.verdict import NO_RESULT
from scalelab.records.attempt import AttemptResult, AttemptSpec
from scalelab.records.attempt_io import write_result


def run_in_process(spec: AttemptSpec, trainer: Trainer) -> AttemptResult:
    """Run an attempt of one rank here, without a fork or a supervisor.

    Exceptions are not caught.
    """
    if spec.placement.world_size != 1:
        raise SpecError(
            f"{spec.attempt_id} has {spec.placement.world_size} ranks; one process can "
            "hold 1. Debug the trial with gpus: [1]."
        )
    timing = Timing()
    Path(spec.directory).mkdir(parents=True, exist_ok=True)
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
            device_id=spec.placement.shares[0].device_ids[0],
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

"""One rank of an attempt, from its seeds to its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from scalelab.experiment.program import Program, WorkloadProgram
from scalelab.records.attempt import AttemptResult, AttemptSpec, Outcome
from scalelab.training.context import (
    RankContext,
    RankIdentity,
    claim_device,
    process_group,
)
from scalelab.training.stream import StreamWriter


def preload_modules(program: Program) -> tuple[str, ...]:
    """Return the modules the fork server imports before it forks ranks."""
    if not isinstance(program, WorkloadProgram):
        return ()
    modules = {"digits_mlp": ("sklearn.datasets",)}
    return ("scalelab.training.rank", *modules.get(program.name, ()))


def run_rank(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> AttemptResult | None:
    """Run one rank of an attempt to its end.

    Returns
    -------
    AttemptResult or None
        The result on rank 0, None on the others. Failures raise.
    """
    torch.set_num_threads(spec.threads_per_rank)
    device = claim_device(spec.device_type, identity.device_id)
    stream = StreamWriter(spec.files.stream if identity.rank == 0 else None)
    with process_group(identity, rendezvous, device, spec.attempt_id):
        context = RankContext(
            identity=identity,
            device=device,
            directory=Path(spec.directory),
            stream=stream,
            progress=progress,
        )
        context.progress(0)
    stream.close()
    return (
        AttemptResult(outcome=Outcome.COMPLETED, measurements={"num_steps": 0})
        if identity.rank == 0
        else None
    )

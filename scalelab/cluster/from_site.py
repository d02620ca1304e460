"""The cluster of a site: local nodes, a held allocation, or batch jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.experiment.program import Program, WorkloadProgram
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import trainer_of
from scalelab.site.profile import Site

if TYPE_CHECKING:
    from scalelab.cluster.dask_nodes import DaskNodes


def cluster_of(
    site: Site,
    *,
    run: Path,
    max_nodes: int,
    programs: Collection[Program],
    parallelism: Sequence[str],
) -> AbstractContextManager[DaskNodes]:
    """Return the cluster of a site; nodes start when it is entered."""
    entry: str | None = None
    preload: list[str] = []
    for program in programs:
        if isinstance(program, WorkloadProgram):
            trainer, name = trainer_of(program.name)
            entry = trainer.entry
            preload += trainer.preload(name, parallelism)
        elif program.launcher_row().serves_store:
            preload.append("torch.distributed")
    cluster: AbstractContextManager[DaskNodes] = imported(site.cluster)(
        site,
        run=run,
        max_nodes=max_nodes,
        preload=tuple(dict.fromkeys(preload)),
        entry=entry,
    )
    return cluster

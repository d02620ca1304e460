"""The cluster of a site: local nodes, a held allocation, or batch jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.experiment.program import Program, needs_torch
from scalelab.kinds.registry import imported
from scalelab.launch.protocol import DEFAULT_ENTRY
from scalelab.site.profile import Site
from scalelab.training.workloads.registry import preload_modules

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
    modules = [preload_modules(program, parallelism) for program in programs]
    cluster: AbstractContextManager[DaskNodes] = imported(site.cluster)(
        site,
        run=run,
        max_nodes=max_nodes,
        preload=tuple(dict.fromkeys(chain.from_iterable(modules))),
        entry=DEFAULT_ENTRY if any(map(needs_torch, programs)) else None,
    )
    return cluster

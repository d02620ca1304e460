"""Launcher ``per_node``: a command that starts the ranks of its node by itself.

``torchrun``, ``accelerate launch`` and the start scripts of Megatron and torchtitan do
so. ``torchrun`` reads its options from ``PET_*`` where they are not given.
"""

from __future__ import annotations

from collections.abc import Mapping

from scalelab.kinds.launchers.job_script import start_per_node
from scalelab.kinds.launchers.row import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_node,
)


def _environment(process: LaunchedProcess) -> Mapping[str, str]:
    port = str(process.master_port)
    return {
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": port,
        "PET_NNODES": str(process.num_nodes),
        "PET_NODE_RANK": str(process.node_rank),
        "PET_NPROC_PER_NODE": str(process.local_world_size),
        "PET_MASTER_ADDR": process.master_addr,
        "PET_MASTER_PORT": port,
    }


def _job(job: RecommendedJob) -> list[str]:
    return start_per_node(
        job,
        {
            "PET_NNODES": str(job.num_nodes),
            "PET_NODE_RANK": "$node_rank",
            "PET_NPROC_PER_NODE": str(job.devices_per_node),
            "PET_MASTER_ADDR": '"$MASTER_ADDR"',
            "PET_MASTER_PORT": '"$MASTER_PORT"',
        },
    )


PER_NODE = Launcher(
    name="per_node",
    processes=per_node,
    environment=_environment,
    job_lines=_job,
    shares_reports=True,
)

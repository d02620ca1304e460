"""Launcher ``torchrun``: a process for each device, numbered as torchrun numbers it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from scalelab.kinds.launchers.job_script import MEET
from scalelab.kinds.launchers.row import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
)


def torchrun_environment(process: LaunchedProcess) -> Mapping[str, str]:
    """Return what ``torchrun`` sets for one rank."""
    rank, world_size = str(process.rank), str(process.world_size)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(process.local_rank),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(process.local_world_size),
        "GROUP_RANK": str(process.node_rank),
        "NODE_RANK": str(process.node_rank),
        "GROUP_WORLD_SIZE": str(process.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
        "TORCHELASTIC_RUN_ID": process.attempt_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _torchrun_job(job: RecommendedJob) -> list[str]:
    options, program = (
        [f"--nproc-per-node={job.devices_per_node}"],
        _under_torchrun(job),
    )
    if job.num_nodes == 1:
        return [" ".join(["torchrun", "--standalone", *options, program])]
    meet = f'--rdzv-backend=c10d --rdzv-endpoint="{job.first_host}:{job.port}"'
    nodes = [f"--nnodes={job.num_nodes}", meet]
    return [" ".join([job.on_each_node, "torchrun", *nodes, *options, program])]


def _under_torchrun(job: RecommendedJob) -> str:
    """Return what follows the options of torchrun."""
    of_rank = job.line(_OF_RANK)
    if (
        of_rank != job.command
    ):  # the same words for all ranks: a shell reads each rank's
        return shlex.join(["--no-python", "bash", "-c", f"exec {of_rank}"])
    program, *arguments = job.argv
    is_script = arguments and not arguments[0].startswith("-")
    if program.startswith("python") and is_script:
        return shlex.join(arguments)
    return shlex.join(["--no-python", *job.argv])


_OF_RANK = {
    **MEET,
    "rank": "$RANK",
    "local_rank": "$LOCAL_RANK",
    "node_rank": "$GROUP_RANK",
    "num_processes": "$WORLD_SIZE",
}
TORCHRUN = Launcher(
    name="torchrun",
    processes=per_device,
    environment=torchrun_environment,
    job_lines=_torchrun_job,
    serves_store=True,
)

"""Launcher ``srun``: a process for each device, numbered as SLURM numbers its tasks.

For programs that expect to be started by ``srun`` and read its variables, such as those
of timm, mmengine and ``jax.distributed.initialize()``. No SLURM is needed.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Mapping

from scalelab.errors import SpecError
from scalelab.kinds.launchers.job_script import MEET
from scalelab.kinds.launchers.row import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
)


def _environment(process: LaunchedProcess) -> Mapping[str, str]:
    size, nodes = str(process.world_size), ",".join(process.hosts)
    return {
        "SLURM_PROCID": str(process.rank),
        "SLURM_LOCALID": str(process.local_rank),
        "SLURM_NODEID": str(process.node_rank),
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NNODES": str(process.num_nodes),
        "SLURM_JOB_NUM_NODES": str(process.num_nodes),
        "SLURM_STEP_NUM_NODES": str(process.num_nodes),
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_STEP_NODELIST": nodes,
        # Frameworks derive ports and names from the number of the job. Trials of one
        # job differ in it.
        "SLURM_JOB_ID": str(zlib.crc32(process.attempt_id.encode())),
        # Lightning takes a job of the name "bash" or "interactive" for a shell.
        "SLURM_JOB_NAME": "scalelab",
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
        "JAX_COORDINATOR_ADDRESS": process.rendezvous,
    }


_OF_TASK = {
    **MEET,
    "rank": "$SLURM_PROCID",
    "local_rank": "$SLURM_LOCALID",
    "node_rank": "$SLURM_NODEID",
    "num_processes": "$SLURM_NTASKS",
}


def _job(job: RecommendedJob) -> list[str]:
    if not job.on_each_device:
        raise SpecError(
            "launcher=srun: the recommended job is started by srun itself, and this "
            "site has none. Name a site with SLURM, or start the job by the launcher "
            "of yours."
        )
    meet = f'export MASTER_ADDR="{job.first_host}" MASTER_PORT={job.port}'
    coordinator = 'JAX_COORDINATOR_ADDRESS="$MASTER_ADDR:$MASTER_PORT"'
    start, of_task = job.command, job.line(_OF_TASK)
    if of_task != start:  # a shell of each task fills them in
        start = shlex.join(["bash", "-c", f"exec {of_task}"])
    return [meet, f"export {coordinator}", f"{job.on_each_device} {start}"]


SRUN = Launcher(
    name="srun", processes=per_device, environment=_environment, job_lines=_job
)

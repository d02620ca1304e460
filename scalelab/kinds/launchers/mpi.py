"""Launchers ``mpi`` and ``mpirun``: MPI programs, and those that read MPI's names."""

from __future__ import annotations

from collections.abc import Mapping

from scalelab.kinds.launchers.job_script import MEET, start_per_device
from scalelab.kinds.launchers.row import (
    ForeignLibrary,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
    per_node,
)
from scalelab.kinds.launchers.torchrun import torchrun_environment


def _environment(process: LaunchedProcess) -> Mapping[str, str]:
    return {
        **torchrun_environment(process),
        "OMPI_COMM_WORLD_RANK": str(process.rank),
        "OMPI_COMM_WORLD_SIZE": str(process.world_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(process.local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(process.local_world_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(process.local_rank),
    }


def _job(job: RecommendedJob) -> list[str]:
    size = job.num_nodes * job.devices_per_node
    numbers = {
        "RANK": "$rank",
        "WORLD_SIZE": size,
        "LOCAL_RANK": "$local_rank",
        "LOCAL_WORLD_SIZE": job.devices_per_node,
        "OMPI_COMM_WORLD_RANK": "$rank",
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": "$local_rank",
        "OMPI_COMM_WORLD_LOCAL_SIZE": job.devices_per_node,
        "OMPI_COMM_WORLD_NODE_RANK": "$local_rank",
    }
    return start_per_device(job, {name: str(value) for name, value in numbers.items()})


MPI = Launcher(
    name="mpi",
    processes=per_device,
    environment=_environment,
    job_lines=_job,
    serves_store=True,
    foreign_library=ForeignLibrary(
        prefix="libmpi.so",
        reason=(
            "launcher=mpi only sets the names under which Open MPI numbers ranks, for "
            "programs that read them. This program has loaded libmpi: MPI_Init would "
            "tell every rank that it is rank 0 of 1, and independent runs would look "
            "like perfect scaling. Use launcher: mpirun."
        ),
    ),
)


def _mpirun_environment(process: LaunchedProcess) -> Mapping[str, str]:
    return {
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
    }


def _mpirun_job(job: RecommendedJob) -> list[str]:
    first = f'"{job.first_host}"' if job.num_nodes > 1 else "127.0.0.1"
    size, each = job.num_nodes * job.devices_per_node, job.devices_per_node
    options = f"-np {size} --map-by ppr:{each}:node --bind-to none"
    return [
        f"export MASTER_ADDR={first} MASTER_PORT={job.port}",
        f"mpirun {options} -x MASTER_ADDR -x MASTER_PORT {job.line(MEET)}",
    ]


MPIRUN = Launcher(
    name="mpirun",
    processes=per_node,
    environment=_mpirun_environment,
    job_lines=_mpirun_job,
    starter="scalelab.launch.command.open_mpi:words_of_node",
    unknown_placeholders=("rank", "local_rank", "node_rank", "num_processes"),
    ports_per_process=1,
    ends_with_rank_0=True,
    shares_reports=True,
)

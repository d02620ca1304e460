"""Launchers for PyTorch and MPI, and for programs that read the names of either."""

import shlex
import zlib
from collections.abc import Mapping

from scalelab.errors import SpecError
from scalelab.kinds.launchers.launcher import (
    ALONE,
    MEET,
    ForeignLibrary,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
)


def _meeting(process: LaunchedProcess) -> dict[str, str]:
    return {
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
    }


class _Torchrun(Launcher):
    name = "torchrun"
    serves_store = True

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        rank, world_size = str(process.rank), str(process.world_size)
        return {
            **_meeting(process),
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
            "TORCHELASTIC_RUN_ID": process.attempt_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        torchrun, where = "torchrun", "--standalone"
        if job.num_nodes > 1:
            torchrun = f"{job.on_each_node} torchrun --nnodes={job.num_nodes}"
            where = f'--rdzv-backend=c10d --rdzv-endpoint="{job.first_host}:{job.port}"'

        per_node = f"--nproc-per-node={job.devices_per_node}"
        of_rank = job.line(
            {
                **MEET,
                "rank": "$RANK",
                "local_rank": "$LOCAL_RANK",
                "node_rank": "$GROUP_RANK",
                "num_processes": "$WORLD_SIZE",
            }
        )

        program, *arguments = job.argv

        is_script = arguments and not arguments[0].startswith("-")
        if of_rank != job.line({}):  # a shell of each rank fills in what differs
            words = ["--no-python", "bash", "-c", f"exec {of_rank}"]
        elif program.startswith("python") and is_script:
            words = arguments
        else:
            words = ["--no-python", *job.argv]

        return [f"{torchrun} {where} {per_node} {shlex.join(words)}"]


# Names under which Open MPI tells programs what torchrun tells them by others.
_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",
}


class _Mpi(_Torchrun):
    name = "mpi"
    foreign_library = ForeignLibrary(
        prefix="libmpi.so",
        reason=(
            "launcher=mpi only sets the names under which Open MPI numbers ranks, for "
            "programs that read them. This program has loaded libmpi: MPI_Init would "
            "tell every rank that it is rank 0 of 1, and independent runs would look "
            "like perfect scaling. Use launcher: mpirun."
        ),
    )

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        variables = super().environment(process)
        return {
            **variables,
            **{name: variables[generic] for name, generic in _OPEN_MPI.items()},
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        variables = {
            "RANK": "$rank",
            "WORLD_SIZE": str(job.num_nodes * job.devices_per_node),
            "LOCAL_RANK": "$local_rank",
            "LOCAL_WORLD_SIZE": str(job.devices_per_node),
        }
        of_mpi = {name: variables[generic] for name, generic in _OPEN_MPI.items()}
        return job.start_per_device({**variables, **of_mpi})


class _Srun(Launcher):
    """A process for each device, numbered as SLURM numbers its tasks.

    For programs that expect to be started by ``srun`` and read its variables, such as
    those of timm, mmengine and ``jax.distributed.initialize()``. No SLURM is needed.
    """

    name = "srun"

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        size, nodes = str(process.world_size), ",".join(process.hosts)
        num_nodes = str(process.num_nodes)
        return {
            **_meeting(process),
            "SLURM_PROCID": str(process.rank),
            "SLURM_LOCALID": str(process.local_rank),
            "SLURM_NODEID": str(process.node_rank),
            "SLURM_NTASKS": size,
            "SLURM_NPROCS": size,
            "SLURM_STEP_NUM_TASKS": size,
            "SLURM_NNODES": num_nodes,
            "SLURM_JOB_NUM_NODES": num_nodes,
            "SLURM_STEP_NUM_NODES": num_nodes,
            "SLURM_NODELIST": nodes,
            "SLURM_JOB_NODELIST": nodes,
            "SLURM_STEP_NODELIST": nodes,
            # Frameworks derive ports and names from the number of the job. Trials of
            # one job differ in it.
            "SLURM_JOB_ID": str(zlib.crc32(process.attempt_id.encode())),
            # Lightning takes a job of the name "bash" or "interactive" for a shell.
            "SLURM_JOB_NAME": "scalelab",
            "JAX_COORDINATOR_ADDRESS": process.rendezvous,
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        if not job.on_each_device:
            raise SpecError(
                "launcher=srun: the recommended job is started by srun itself, and "
                "this site has none. Name a site with SLURM, or start the job by the "
                "launcher of yours.",
                code="srun_without_slurm",
            )

        start = job.line({})
        of_task = job.line(
            {
                **MEET,
                "rank": "$SLURM_PROCID",
                "local_rank": "$SLURM_LOCALID",
                "node_rank": "$SLURM_NODEID",
                "num_processes": "$SLURM_NTASKS",
            }
        )
        if of_task != start:  # a shell of each task fills them in
            start = shlex.join(["bash", "-c", f"exec {of_task}"])

        return [
            f'export MASTER_ADDR="{job.first_host}" MASTER_PORT={job.port}',
            'export JAX_COORDINATOR_ADDRESS="$MASTER_ADDR:$MASTER_PORT"',
            f"{job.on_each_device} {start}",
        ]


class _PerNode(Launcher):
    """A command that starts the ranks of its node by itself.

    ``torchrun``, ``accelerate launch`` and the start scripts of Megatron and torchtitan
    do so. ``torchrun`` reads its options from ``PET_*`` where they are not given.
    """

    name = "per_node"
    per = "node"
    shares_reports = True

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return {
            **_meeting(process),
            "PET_NNODES": str(process.num_nodes),
            "PET_NODE_RANK": str(process.node_rank),
            "PET_NPROC_PER_NODE": str(process.local_world_size),
            "PET_MASTER_ADDR": process.master_addr,
            "PET_MASTER_PORT": str(process.master_port),
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        return job.start_per_node(
            {
                "PET_NNODES": str(job.num_nodes),
                "PET_NODE_RANK": "$node_rank",
                "PET_NPROC_PER_NODE": str(job.devices_per_node),
                "PET_MASTER_ADDR": '"$MASTER_ADDR"',
                "PET_MASTER_PORT": '"$MASTER_PORT"',
            }
        )


class _None(Launcher):
    name = "none"
    per = "node"
    only_one_node = "starts one process per trial"
    shares_reports = True

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        # What a torchrun inside the command uses instead of its one fixed port.
        return {**_meeting(process), "PET_MASTER_PORT": str(process.master_port)}

    def job_lines(self, job: RecommendedJob) -> list[str]:
        port = f"MASTER_PORT={job.port} PET_MASTER_PORT={job.port}"
        return [f"export MASTER_ADDR=127.0.0.1 {port}", job.line(ALONE)]


class _Mpirun(Launcher):
    name = "mpirun"
    per = "node"
    starter = "scalelab.launch.command.open_mpi:words_of_node"
    unknown_placeholders = ("rank", "local_rank", "node_rank", "num_processes")
    ports_per_process = 1
    ends_with_rank_0 = True
    shares_reports = True

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return _meeting(process)

    def job_lines(self, job: RecommendedJob) -> list[str]:
        first = f'"{job.first_host}"' if job.num_nodes > 1 else "127.0.0.1"
        size, devices = job.num_nodes * job.devices_per_node, job.devices_per_node
        options = f"-np {size} --map-by ppr:{devices}:node --bind-to none"
        return [
            f"export MASTER_ADDR={first} MASTER_PORT={job.port}",
            f"mpirun {options} -x MASTER_ADDR -x MASTER_PORT {job.line(MEET)}",
        ]


TORCHRUN, SRUN, MPI = _Torchrun(), _Srun(), _Mpi()
PER_NODE, NONE, MPIRUN = _PerNode(), _None(), _Mpirun()

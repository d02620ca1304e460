"""Launchers: the ways to start the processes of a command (key ``launcher``).

A launcher is one row. It says which processes a node starts, what each of them finds in
its environment, when the trial is over, and how the recommended job starts its program
in a batch script.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.inputs.placeholders import shell_word
from scalelab.kinds.registry import Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedProcess:
    """One process of a command's attempt, as its launcher sees it.

    Parameters
    ----------
    rank
        Its number among all processes of the attempt, from 0.
    local_rank
        Its number among the processes of its node, from 0.
    node_rank
        The number of its node, from 0.
    world_size
        Devices of the attempt.
    num_nodes
        Nodes of the attempt.
    local_world_size
        Devices of its node that belong to the attempt.
    master_addr, master_port
        Numeric address and port, on the first node, where the processes meet.
    hosts
        Numeric address of each node.
    ports
        For each node, the ports that were reserved for its processes: the first
        ``ports_per_process`` of them for local rank 0, and so on.
    device_ids
        The CUDA devices of this process alone; empty on CPU.
    attempt_id
        Unique name of the attempt within its run.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    num_nodes: int
    local_world_size: int
    master_addr: str
    master_port: int
    hosts: tuple[str, ...]
    ports: tuple[tuple[int, ...], ...]
    device_ids: tuple[str, ...]
    attempt_id: str

    @property
    def placeholders(self) -> Mapping[str, object]:
        """Values of the placeholders that describe this process, by name."""
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "node_rank": self.node_rank,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendedJob:
    """A recommended job, as a launcher starts it in the script of a batch job.

    Parameters
    ----------
    argv
        The program and its arguments, with all values filled in but those of a single
        process: ``{rank}``, ``{local_rank}``, ``{node_rank}``, ``{master_addr}`` and
        ``{master_port}``.
    num_nodes
        Nodes of the job.
    devices_per_node
        Devices on each of them.
    on_each_node
        Shell words before a program that start it once on every node, such as ``srun``;
        empty where the job has one node.
    first_host
        Shell expression for the name of the first node.
    port
        Shell expression for a port on the first node that other jobs do not take.
    """

    argv: tuple[str, ...]
    num_nodes: int
    devices_per_node: int
    on_each_node: str
    first_host: str
    port: str

    @property
    def command(self) -> str:
        """The command as a line of shell; placeholders of a single process stay."""
        return self.line({})

    def line(self, of_process: Mapping[str, str]) -> str:
        """Return the command as a line of shell.

        Parameters
        ----------
        of_process
            Shell expressions by the name of the placeholder that they stand for.
        """
        return " ".join(shell_word(word, of_process) for word in self.argv)


Devices = tuple[str, ...]


def per_device(device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
    """Start one process for each device of every node."""
    return tuple((device_id,) for device_id in device_ids)


def per_node(device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
    """Start one process on every node, with all devices of the node."""
    return (device_ids,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """The way in which a launcher starts the processes of a command.

    Parameters
    ----------
    name
        Value of the key ``launcher``.
    processes
        Called with the devices of a node and the node's number: returns the devices of
        each process that the node starts.
    environment
        Environment variables of a process, set on top of those that all processes of a
        node share.
    job_lines
        The lines of a batch job's script that start the recommended job.
    serves_store
        ScaleLab serves a torch store where the processes meet, before the first of them
        starts; nodes then import torch. Where not, the port is only free when they
        start.
    ports_per_process
        Free ports that each process is given besides the port where they meet.
    only_one_node
        Why a trial must not span several nodes, as a clause that follows the name; None
        where it may.
    ends_with_rank_0
        The trial is over when rank 0 ends: the other processes are then ended, and how
        they end does not matter. Where not, it is over when all processes have ended.
    """

    name: str
    processes: Callable[[Devices, int], tuple[Devices, ...]]
    environment: Callable[[LaunchedProcess], Mapping[str, str]]
    job_lines: Callable[[RecommendedJob], list[str]]
    serves_store: bool = False
    ports_per_process: int = 0
    only_one_node: str | None = None
    ends_with_rank_0: bool = False

    def check_nodes(self, num_nodes: int, trial: str) -> None:
        """Refuse a trial on more nodes than this launcher can start processes on.

        Parameters
        ----------
        num_nodes
            Nodes of the trial.
        trial
            What the message calls it.

        Raises
        ------
        SpecError
            If it has several nodes and the launcher is for one.
        """
        if num_nodes > 1 and self.only_one_node:
            raise SpecError(
                f"launcher={self.name} {self.only_one_node}, but {trial} has "
                f"{num_nodes} nodes. Use launcher: {TORCHRUN.name}, or keep every "
                "trial on one node."
            )


def _torchrun_environment(process: LaunchedProcess) -> Mapping[str, str]:
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
    "rank": "$RANK",
    "local_rank": "$LOCAL_RANK",
    "node_rank": "$GROUP_RANK",
    "master_addr": "$MASTER_ADDR",
    "master_port": "$MASTER_PORT",
}
TORCHRUN = Launcher(
    name="torchrun",
    processes=per_device,
    environment=_torchrun_environment,
    job_lines=_torchrun_job,
    serves_store=True,
)


def _single_environment(process: LaunchedProcess) -> Mapping[str, str]:
    """Return where ranks meet that the command starts by itself."""
    port = str(process.master_port)
    return {
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": port,
        # What a torchrun inside the command uses instead of its one fixed port.
        "PET_MASTER_PORT": port,
    }


def _single_job(job: RecommendedJob) -> list[str]:
    own = {"rank": "0", "local_rank": "0", "node_rank": "0"}
    meet = {"master_addr": "$MASTER_ADDR", "master_port": "$MASTER_PORT"}
    port = f"MASTER_PORT={job.port} PET_MASTER_PORT={job.port}"
    return [f"export MASTER_ADDR=127.0.0.1 {port}", job.line({**own, **meet})]


NONE = Launcher(
    name="none",
    processes=per_node,
    environment=_single_environment,
    job_lines=_single_job,
    only_one_node="starts one process per trial",
)

LAUNCHERS = Registry(
    "scalelab.launchers", Launcher, key="launcher", built_in=(TORCHRUN, NONE)
)

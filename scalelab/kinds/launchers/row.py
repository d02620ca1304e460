"""The row of a launcher, and what it is told of processes and of the recommended job.

A row says which processes a node starts, what each of them finds in its environment,
when the trial is over, and how the recommended job starts its program in a batch
script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.placeholders import shell_word


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
    num_processes
        Processes of the attempt on all nodes.
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
    devices_on_nodes
        Devices of the attempt on each node.
    device_ids
        The CUDA devices of this process alone; empty on CPU.
    attempt_id
        Unique name of the attempt within its run.
    """

    rank: int
    local_rank: int
    node_rank: int
    num_processes: int
    world_size: int
    num_nodes: int
    local_world_size: int
    master_addr: str
    master_port: int
    hosts: tuple[str, ...]
    ports: tuple[tuple[int, ...], ...]
    devices_on_nodes: tuple[int, ...]
    device_ids: tuple[str, ...]
    attempt_id: str

    @property
    def placeholders(self) -> Mapping[str, object]:
        """Values of the placeholders that describe this process, by name."""
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "node_rank": self.node_rank,
            "num_processes": self.num_processes,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "rendezvous": self.rendezvous,
            "coordinator": self.rendezvous,
        }

    @property
    def rendezvous(self) -> str:
        """Where the processes meet, ``address:port``."""
        return with_port(self.master_addr, self.master_port)


def with_port(address: str, port: int) -> str:
    """Return a numeric address with a port.

    >>> with_port("10.0.0.7", 41000), with_port("fd00::7", 41000)
    ('10.0.0.7:41000', '[fd00::7]:41000')
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendedJob:
    """A recommended job, as a launcher starts it in the script of a batch job.

    Parameters
    ----------
    argv
        The program and its arguments, with all values filled in but those of a single
        process, such as ``{rank}`` and ``{master_addr}``.
    num_nodes
        Nodes of the job.
    devices_per_node
        Devices on each of them.
    on_each_node
        Shell words before a program that start it once on every node, such as ``srun``;
        empty where the job has one node.
    on_each_device
        Shell words before a program that start it once for every device of every node,
        as ``srun`` does; empty where the batch system starts no tasks of its own.
    first_host
        Shell expression for the name of the first node.
    hosts
        Shell expression for the names of all nodes, the first node's first.
    port
        Shell expression for a port on the first node that other jobs do not take.
    """

    argv: tuple[str, ...]
    num_nodes: int
    devices_per_node: int
    on_each_node: str
    on_each_device: str
    first_host: str
    hosts: str
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


Processes = Callable[[Devices, int], tuple[Devices, ...]]


def per_device(device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
    """Start one process for each device of every node."""
    return tuple((device_id,) for device_id in device_ids)


def per_node(device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
    """Start one process on every node, with all devices of the node."""
    return (device_ids,)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignLibrary:
    """A library that a program must not load under a launcher.

    Parameters
    ----------
    prefix
        How the name of its file begins, such as ``libmpi.so``.
    reason
        Why a trial is refused whose program has loaded it, and what to do.
    """

    prefix: str
    reason: str


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
        The lines of a batch job's script that start the recommended job. It raises a
        SpecError where a batch system offers no way to.
    starter
        Path, ``module:function``, of what makes the words that a process executes out
        of those of the command: called with the process, the command's words and the
        process's environment, on its node. It raises a SpecError where a program is
        missing. None: the command itself is executed.
    unknown_placeholders
        Placeholders of a process that it cannot fill in, since a program of its own
        starts and numbers the ranks. A command that uses one is refused.
    configured
        Returns the row for options that stand beside the launcher's name, or raises a
        SpecError. None: it has no options.
    serves_store
        ScaleLab serves a torch store where the processes meet, before the first of them
        starts; nodes then import torch. Where not, the port is only free when they
        start.
    ports_per_process
        Free ports that each process is given besides the port where they meet.
    holds_ports
        These ports stay bound until the trial is over, with ``SO_REUSEPORT``: servers
        that set this option, as gRPC can, listen on them all the same, and no other
        program is given them. Where not, they are released as the processes start.
    foreign_library
        What its programs must not load; None: anything goes.
    only_one_node
        Why a trial must not span several nodes, as a clause that follows the name; None
        where it may.
    ends_with_rank_0
        The trial is over when rank 0 ends: the other processes are then ended, and how
        they end does not matter. Where not, it is over when all processes have ended.
    shares_reports
        All ranks of a node may report where rank 0 does, since one process starts them
        and they inherit its environment. A step counts when it is first reported. The
        ranks must be as many as the trial has devices, as far as they are told.
    """

    name: str
    processes: Processes
    environment: Callable[[LaunchedProcess], Mapping[str, str]]
    job_lines: Callable[[RecommendedJob], list[str]]
    starter: str | None = None
    unknown_placeholders: tuple[str, ...] = ()
    configured: Callable[[Mapping[str, Scalar]], Launcher] | None = None
    serves_store: bool = False
    ports_per_process: int = 0
    holds_ports: bool = False
    foreign_library: ForeignLibrary | None = None
    only_one_node: str | None = None
    ends_with_rank_0: bool = False
    shares_reports: bool = False

    def with_options(self, options: Mapping[str, Scalar]) -> Launcher:
        """Return the row for options that stand beside the launcher's name.

        Raises
        ------
        SpecError
            If it has none, or not these.
        """
        if not options:
            return self
        if self.configured is None:
            raise SpecError(
                f"launcher={self.name} has no options: remove {', '.join(options)}, or "
                "write only the name."
            )
        return self.configured(options)

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
                f"{num_nodes} nodes. Use launcher: torchrun, per_node or another that "
                "spans nodes, or keep every trial on one node."
            )

"""The base class of launchers, and the processes and jobs that it is given.

A launcher says which processes a node starts, what each of them finds in its
environment, when the trial is over, and how the recommended job starts its program in a
batch script.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.fields import Section
from scalelab.inputs.placeholders import shell_word
from scalelab.inputs.problems import validated

Devices = tuple[str, ...]

# Shell expressions for placeholders: where processes meet, those of a job's only
# process, of one process per node, and of one process per device.
MEET: Mapping[str, str] = {
    "master_addr": "$MASTER_ADDR",
    "master_port": "$MASTER_PORT",
    "rendezvous": "$MASTER_ADDR:$MASTER_PORT",
    "coordinator": "$MASTER_ADDR:$MASTER_PORT",
}
ALONE: Mapping[str, str] = {
    **MEET,
    "rank": "0",
    "local_rank": "0",
    "node_rank": "0",
    "num_processes": "1",
}
_OF_NODE: Mapping[str, str] = {
    **ALONE,
    "rank": "$node_rank",
    "node_rank": "$node_rank",
    "num_processes": "$num_processes",
}
OF_DEVICE: Mapping[str, str] = {
    **_OF_NODE,
    "rank": "$rank",
    "local_rank": "$local_rank",
}
# A name may have its domain or not.
_FIND_NODE = (
    "node_rank=0",
    'for host in "$@"; do',
    '  [ "${host%%.*}" = "$(hostname -s)" ] && break',
    "  node_rank=$((node_rank + 1))",
    "done",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedProcess:
    """One process of a command's attempt, as its launcher sees it.

    Parameters
    ----------
    rank, local_rank
        Its number among all processes of the attempt, and of its node, from 0.
    node_rank
        The number of its node, from 0.
    num_processes
        Processes of the attempt on all nodes.
    world_size, num_nodes
        Devices and nodes of the attempt.
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
        return f"{bracketed(self.master_addr)}:{self.master_port}"


def bracketed(address: str) -> str:
    """Return a numeric address as it stands before a port.

    >>> bracketed("10.0.0.7"), bracketed("fd00::7")
    ('10.0.0.7', '[fd00::7]')
    """
    return f"[{address}]" if ":" in address else address


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

    def line(self, of_process: Mapping[str, str]) -> str:
        """Return the command as a line of shell, with expressions for placeholders.

        Placeholders of a single process that have none stay.
        """
        return " ".join(shell_word(word, of_process) for word in self.argv)

    def start_per_node(self, variables: Mapping[str, str]) -> list[str]:
        """Return the lines that start a process on every node.

        Parameters
        ----------
        variables
            Shell words for environment variables of a process. They, and placeholders
            in the command, may use ``$node_rank``, ``$num_processes``,
            ``$MASTER_ADDR``, ``$MASTER_PORT`` and, for the names of all nodes,
            ``"$@"``.
        """
        start = f"exec env {_assigned(variables)}{self.line(_OF_NODE)}"
        return self.on_every_node(self.num_nodes, [start])

    def start_per_device(self, variables: Mapping[str, str]) -> list[str]:
        """Return the lines that start a process for each device of every node.

        One that fails ends the others of its node.

        Parameters
        ----------
        variables
            As for :meth:`start_per_node`; further, ``$rank`` and ``$local_rank``.
        """
        count = self.devices_per_node
        return self.on_every_node(
            self.num_nodes * count,
            [
                f"for ((local_rank = 0; local_rank < {count}; local_rank++)); do",
                f"  rank=$((node_rank * {count} + local_rank))",
                f"  env {_assigned(variables)}{self.line(OF_DEVICE)} &",
                "done",
                f"for ((ended = 0; ended < {count}; ended++)); do",
                "  wait -n || { status=$?; kill $(jobs -p); exit $status; }",
                "done",
            ],
        )

    def on_every_node(self, num_processes: int, lines: Sequence[str]) -> list[str]:
        """Return the lines of the script that run shell lines once on every node.

        Parameters
        ----------
        num_processes
            Processes that the lines start on all nodes together.
        lines
            They find ``$node_rank``, ``$num_processes``, ``$MASTER_ADDR``,
            ``$MASTER_PORT`` and, as ``"$@"``, the names of all nodes.
        """
        total = f"num_processes={num_processes}"
        if self.num_nodes == 1:
            meet = f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={self.port}"
            return [meet, "set -- 127.0.0.1", f"node_rank=0 {total}", *lines]
        meet = "export MASTER_PORT=$1 MASTER_ADDR=$2; shift"
        script = shlex.quote("\n".join([meet, *_FIND_NODE, total, *lines]))
        start = f'{self.on_each_node} bash -c {script} start "{self.port}" {self.hosts}'
        return start.split("\n")


def _assigned(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={value} " for name, value in variables.items())


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


class Launcher(ABC):
    """The way in which a launcher starts the processes of a command.

    A class of its own sets ``name`` and whatever else differs; an instance of it is the
    row of the registry.

    Parameters
    ----------
    options
        What stands beside its name in an experiment, of the nested class ``Options``.

    Attributes
    ----------
    name
        Value of the key ``launcher``.
    per
        Whether a node starts a process for each device or one for all of them.
    starter
        Path, ``module:function``, of what makes the words that a process executes out
        of those of the command: called with the process, the command's words and the
        process's environment, on its node. It raises a SpecError where a program is
        missing. None: the command itself is executed.
    unknown_placeholders
        Placeholders of a process that it cannot fill in, since a program of its own
        starts and numbers the ranks. A command that uses one is refused.
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
        and they inherit its environment. A step counts when it is first reported.
    """

    name: str
    per: Literal["device", "node"] = "device"
    starter: str | None = None
    unknown_placeholders: tuple[str, ...] = ()
    serves_store: bool = False
    ports_per_process: int = 0
    holds_ports: bool = False
    foreign_library: ForeignLibrary | None = None
    only_one_node: str | None = None
    ends_with_rank_0: bool = False
    shares_reports: bool = False

    class Options(Section):
        """Options that stand beside the launcher's name, with their defaults."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()

    def with_options(self, options: Mapping[str, Scalar]) -> Self:
        """Return the launcher with the options beside its name, or refuse them."""
        if options and not self.Options.model_fields:
            raise SpecError(
                f"launcher={self.name} has no options: remove {', '.join(options)}, or "
                "write only the name.",
                code="launcher_without_options",
            )
        source = f"launcher={self.name}"
        return type(self)(validated(self.Options, options, source=source))

    def processes(self, device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
        """Return the devices of each process of a node, which has these devices."""
        if self.per == "node":
            return (device_ids,)
        return tuple((device_id,) for device_id in device_ids)

    @abstractmethod
    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        """Return the environment variables of a process.

        They are set on top of those that all processes of a node share.
        """

    @abstractmethod
    def job_lines(self, job: RecommendedJob) -> list[str]:
        """Return the lines of a batch job's script that start the recommended job.

        It raises a SpecError if the batch system offers no way to.
        """

    def check_nodes(self, num_nodes: int, trial: str) -> None:
        """Refuse a trial, called so, on more nodes than processes can be started on."""
        if num_nodes > 1 and self.only_one_node:
            raise SpecError(
                f"launcher={self.name} {self.only_one_node}, but {trial} has "
                f"{num_nodes} nodes. Use launcher: torchrun, per_node or another that "
                "spans nodes, or keep every trial on one node.",
                code="launcher_of_one_node",
            )

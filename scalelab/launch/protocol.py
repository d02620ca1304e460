"""The messages between agents, rank servers and ranks.

Every attempt has a channel of its own: a ``SOCK_SEQPACKET`` pair whose far end the rank
server and the attempt's processes share. Messages arrive whole and in order, so a
rank's result is read before the server's message that the rank has ended. When the
agent closes the near end, the server kills what is left of the attempt.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalelab.records.attempt import AttemptSpec

# faulthandler writes every thread's stack to the rank's log on this signal.
STACK_DUMP_SIGNAL = signal.SIGUSR1
MAX_MESSAGE_BYTES = 65536
# The kernel passes at most 253 descriptors with one message.
MAX_DESCRIPTORS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRequest:
    """An agent's request to its rank server for one process of an attempt.

    Where nothing is given, it has the cores of the node's agent, and the standard
    output and the working directory of the server; the log is appended to.
    """

    rank: int
    task: RankTask | CommandTask | StoreTask
    cores: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None
    directory: str | None = None
    search_path: tuple[str, ...] = ()


# Where a rank may write on the disk of its node; removed when the node ends
NODE_DIRECTORY = "SCALELAB_NODE_DIRECTORY"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankIdentity:
    """The position of a process among the ranks of an attempt.

    From ``world_size`` on a rank is a parameter server, which holds no device.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int

    @property
    def is_server(self) -> bool:
        """Whether it is a parameter server."""
        return self.rank >= self.world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTask:
    """Call ``entry(spec, identity, rendezvous, progress)`` in a fork of the server.

    ``entry`` is ``module:function``; ``row`` is the rank's row of the progress board.
    """

    entry: str
    spec: AttemptSpec
    identity: RankIdentity
    rendezvous: str
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandTask:
    """Execute a command line."""

    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreTask:
    """Serve a rendezvous store on this address until the attempt ends."""

    address: str


def to_memory(processes: Sequence[ProcessRequest]) -> int:
    """Return a descriptor of an anonymous file with what a node starts of an attempt.

    Only the agent writes it, and only processes that it has started read it.
    """
    descriptor = os.memfd_create("scalelab-request", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        pickle.dump(tuple(processes), file)
    return descriptor


def from_memory(descriptor: int) -> tuple[ProcessRequest, ...]:
    """Read processes back; the descriptor stays open."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    processes: tuple[ProcessRequest, ...] = pickle.loads(content)
    return processes


def send(
    channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Send one message; one that is too large for a packet in an anonymous file."""
    packet = json.dumps(message).encode()
    if len(packet) <= MAX_MESSAGE_BYTES:
        socket.send_fds(channel, [packet], list(descriptors))
        return
    descriptor = os.memfd_create("scalelab-message", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(packet)
        file.flush()
        socket.send_fds(channel, [b"large"], [descriptor])


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors; None when the other side has closed."""
    # socket.recv_fds ignores its flags: commands would inherit the descriptors.
    packet, ancillary, _, _ = channel.recvmsg(
        MAX_MESSAGE_BYTES,
        socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize),
        socket.MSG_CMSG_CLOEXEC,
    )
    descriptors = [
        descriptor for _, _, content in ancillary for descriptor in array("i", content)
    ]
    if not packet:
        return None, []
    if packet == b"large":
        with os.fdopen(descriptors.pop(), "rb") as file:
            packet = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

    message: dict[str, Any] = json.loads(packet)
    return message, descriptors

"""What processes of this host hold in common: TCP connections and shared memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

_ESTABLISHED = "01"
_SOCKET = "socket:["
# What other files map shared and writable, such as caches and data sets, any two
# processes may have open.
_MEMORY = ("/dev/shm/", "/SYSV", "/memfd:")

Place = tuple[str, int]
"""Numeric address and port."""

Link = tuple[Place, Place]
"""Both ends of a TCP connection, the process's own first."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of one rank hold.

    Parameters
    ----------
    is_whole
        All of it could be read, which it cannot of a process that ends, or is another
        user's.
    """

    links: frozenset[Link]
    memory: frozenset[tuple[str, str]]
    is_whole: bool

    def meets(self, other: Held) -> bool:
        """Tell whether a connection or a segment leads from one to the other."""
        reached = {(peer, own) for own, peer in self.links}
        return bool(reached & other.links or self.memory & other.memory)


def tcp_connections(pid: int) -> dict[str, Link]:
    """Return all TCP connections of the host, as a process sees them, by inode.

    Each is its own place and that of its peer. Connections that nobody holds any more
    have the inode 0.
    """
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/{pid}/net/{name}").read_text()
        except OSError:  # the process has ended, or there is no IPv6
            continue
        for line in text.splitlines()[1:]:
            _, own, peer, state, *_, inode = line.split()[:10]
            if state == _ESTABLISHED:
                found[inode] = (_place(own), _place(peer))
    return found


def held_by(pids: Iterable[int], connections: Mapping[str, Link]) -> Held:
    """Return what processes hold of these connections, and their shared memory."""
    links, memory, is_whole = set(), set(), True
    for pid in pids:
        try:
            links |= {connections[each] for each in _sockets(pid) & connections.keys()}
            memory |= set(_segments(pid))
        except OSError:  # it has ended, or is another user's
            is_whole = False
    return Held(frozenset(links), frozenset(memory), is_whole)


def _sockets(pid: int) -> set[str]:
    names = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            name = os.readlink(entry.path)
        except FileNotFoundError:  # closed in the meantime
            continue
        if name.startswith(_SOCKET):
            names.add(name.removeprefix(_SOCKET).rstrip("]"))
    return names


def _segments(pid: int) -> Iterable[tuple[str, str]]:
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        _, mode, _, device, inode, *path = line.split(maxsplit=5)
        if mode.startswith("rw") and mode.endswith("s") and path:
            if path[0].startswith(_MEMORY):
                yield device, inode


def _place(text: str) -> Place:
    """Return a place as the kernel prints it: hexadecimal, words of the host's order.

    >>> _place("0100007F:A2D8")
    ('127.0.0.1', 41688)
    """
    words, _, port = text.partition(":")
    packed = b"".join(
        int(words[at : at + 8], 16).to_bytes(4, sys.byteorder)
        for at in range(0, len(words), 8)
    )
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return str(address), int(port, 16)

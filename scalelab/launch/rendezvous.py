"""Rendezvous of an attempt's processes: address, ports, interface, store."""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from scalelab.errors import LaunchError
from scalelab.kinds.launchers.launcher import bracketed
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import ProcessRequest, StoreTask, receive
from scalelab.launch.ranks.server_process import RankServers

LOOPBACK = "127.0.0.1"
_STORE_PATIENCE_S = 30.0
_served: list[object] = []


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of a numeric address.

    >>> family_of("10.0.0.7").name, family_of("fd00::7").name
    ('AF_INET', 'AF_INET6')
    """
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """The address and ports where the processes of a command find each other."""

    hosts: tuple[str, ...]
    port: int
    ports: tuple[tuple[int, ...], ...]

    @classmethod
    def parse(cls, rendezvous: str) -> Meeting:
        """Read what the nodes have opened, one :func:`tcp_rendezvous` after the other.

        >>> Meeting.parse("tcp://10.0.0.7:41000,41001 tcp://10.0.0.8:41000")
        Meeting(hosts=('10.0.0.7', '10.0.0.8'), port=41000, ports=((41001,), (41000,)))
        """
        places = [word.rpartition(":") for word in rendezvous.split()]
        ports = [
            tuple(int(port) for port in numbers.split(",") if port)
            for _, _, numbers in places
        ]
        return cls(
            hosts=tuple(str(urlsplit(place).hostname) for place, _, _ in places),
            port=ports[0][0],
            ports=(ports[0][1:], *ports[1:]),
        )


class HeldPorts:
    """The ports that a node has found for the processes of its attempts.

    Each is bound with ``SO_REUSEPORT`` until it is released, so that nothing else on
    the node is given it. No two attempts that run at the same time get the same one,
    even after it was released for the process that will listen there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[str, list[socket.socket]] = {}
        self._numbers: dict[str, set[int]] = {}

    def find(self, attempt_id: str, address: str, count: int) -> tuple[int, ...]:
        """Bind so many free ports of an address for an attempt, and return them."""
        if count == 0:
            return ()
        with self._lock:
            taken = {port for known in self._numbers.values() for port in known}
            held = _bound(address, count, taken)
            ports = tuple(held_socket.getsockname()[1] for held_socket in held)
            self._sockets.setdefault(attempt_id, []).extend(held)
            self._numbers.setdefault(attempt_id, set()).update(ports)
        return ports

    def release(self, attempt_id: str) -> None:
        """Let the processes of an attempt, which start now, bind its ports."""
        with self._lock:
            for held_socket in self._sockets.pop(attempt_id, []):
                held_socket.close()

    def forget(self, attempt_id: str) -> None:
        """Give back the ports of an attempt that is over."""
        self.release(attempt_id)
        with self._lock:
            self._numbers.pop(attempt_id, None)


def _bound(address: str, count: int, taken: Collection[int]) -> list[socket.socket]:
    with ExitStack() as others, ExitStack() as at_failure:
        bound: list[socket.socket] = []
        while len(bound) < count:
            listener = socket.socket(family_of(address), socket.SOCK_STREAM)
            at_failure.enter_context(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((address, 0))
            if listener.getsockname()[1] in taken:
                others.enter_context(listener)
            else:
                bound.append(listener)

        at_failure.pop_all()
        return bound


def serve_store(address: str) -> int:
    """Serve a torch ``TCPStore`` from this process and return its port.

    The socket is bound to the address before the store gets it, so the store listens on
    one interface, and no other program can take the port in between.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket(family_of(address), socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(1024)
        port: int = listener.getsockname()[1]
        store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    _served.append(store)
    return port


def file_rendezvous(file: Path) -> str:
    """Return the address of a store in a file that does not exist yet.

    It must lie on a local disk: the store locks it, which is slow or broken over NFS.
    """
    return f"file://{file}"


def tcp_rendezvous(address: str, *ports: int) -> str:
    """Return an address with its ports: that of a served store, or those of a node.

    >>> tcp_rendezvous("10.0.0.7", 41000), tcp_rendezvous("fd00::7", 41000, 41001)
    ('tcp://10.0.0.7:41000', 'tcp://[fd00::7]:41000,41001')
    """
    return f"tcp://{bracketed(address)}:{','.join(map(str, ports))}"


@cache
def interface_of(address: str) -> str:
    """Return the name of the network interface that has this address, e.g. ``ib0``."""
    import psutil

    wanted = ipaddress.ip_address(address)

    # IPv6 addresses carry their zone: fe80::1%eth0.
    known = [
        (address.address.partition("%")[0], name)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    for numeric, name in known:
        if ipaddress.ip_address(numeric) == wanted:
            return name

    if wanted.is_loopback:
        return "lo"

    has = ", ".join(f"{numeric} ({name})" for numeric, name in known)
    raise LaunchError(
        f"address={address} is no address of {socket.gethostname()}. "
        f"It has {has}: give the node one of these."
    )


def network_environment(rendezvous: str, address: str) -> Mapping[str, str]:
    """Return the variables that put the ranks' traffic on the node's own interface.

    Without them gloo looks up the host's name, which may give another interface or wait
    for a name server. torch always looks up the *name* of the address of a store it
    connects to. One lost packet then costs the resolver's time limit: 5 s by default, 1
    s with these variables.
    """
    if urlsplit(rendezvous).scheme == "file":
        return {"GLOO_SOCKET_IFNAME": interface_of("127.0.0.1")}
    name = interface_of(address)
    return {
        "GLOO_SOCKET_IFNAME": name,
        "NCCL_SOCKET_IFNAME": name,
        "RES_OPTIONS": "timeout:1 attempts:3",
    }


class RendezvousStores:
    """The stores of one node, each served by a process of its own."""

    def __init__(self, servers: RankServers, node: str) -> None:
        self._servers = servers
        self._node = node
        self._lock = threading.Lock()
        self._channels: dict[str, socket.socket] = {}

    def serve(self, attempt_id: str, address: str) -> int:
        """Serve a store for an attempt and return its port."""
        process = ProcessRequest(
            rank=0,
            task=StoreTask(address=address),
            env=network_environment("tcp://", address),
        )
        with closing(ProgressBoard(1)) as board:
            channel = self._servers.current().launch((process,), board)

        with self._lock:
            self._channels[attempt_id] = channel

        try:
            channel.settimeout(_STORE_PATIENCE_S)
            answer: dict[str, int] = {}
            # The server tells the start and the process its port, in either order.
            while answer.keys() != {"started", "store"}:
                message, descriptors = receive(channel)
                for descriptor in descriptors:
                    os.close(descriptor)
                match message:
                    case {"kind": "started", "pid": int(number)}:
                        answer["started"] = number
                    case {"kind": "store", "port": int(number)}:
                        answer["store"] = number
                    case {"kind": "failed", "failure": failure}:
                        raise OSError(failure["summary"])
                    case None:
                        raise OSError("the rank server has ended")

            return answer["store"]
        except OSError as error:
            self.end(attempt_id)
            raise LaunchError(
                f"node {self._node} cannot serve a rendezvous on {address}: "
                f"{error}. Use an address of that host which the other nodes can reach."
            ) from error

    def descriptor(self, attempt_id: str) -> int | None:
        """Return what can be read once the store of an attempt has ended unasked.

        None where no store is served for the attempt.
        """
        with self._lock:
            channel = self._channels.get(attempt_id)
        return None if channel is None else channel.fileno()

    def has_died(self, attempt_id: str) -> bool:
        """Tell whether the store of an attempt has ended before it was asked to."""
        store = self.descriptor(attempt_id)
        return store is not None and bool(select.select([store], [], [], 0)[0])

    def end(self, attempt_id: str) -> None:
        """End the store of an attempt, if there is one, and wait until it is gone."""
        with self._lock:
            channel = self._channels.pop(attempt_id, None)
        if channel is None:
            return
        with channel, suppress(OSError):
            channel.shutdown(socket.SHUT_WR)
            while receive(channel)[0] is not None:
                pass

    def close(self) -> None:
        """End all stores."""
        for attempt_id in list(self._channels):
            self.end(attempt_id)

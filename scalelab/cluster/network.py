"""Network addresses: the one at which other hosts reach this one."""

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from scalelab.errors import ClusterError
from scalelab.inputs.numerals import counted
from scalelab.kinds.launchers.launcher import bracketed
from scalelab.launch.rendezvous import family_of

LOOPBACK = "127.0.0.1"
_RDMA = Path("/sys/class/infiniband")  # of RoCE, too


def address_of_interface(name: str) -> str:
    """Return the address of a network interface, IPv4 where it has one."""
    addresses = _addresses()
    if found := addresses.get(name):
        return found[0]

    known = ", ".join(
        f"{interface} ({', '.join(has)})" for interface, has in addresses.items()
    )
    raise ClusterError(
        f"{socket.gethostname()} has no network interface {name!r} with an address. "
        f"It has {known or 'none'}. Change interface or driver_interface in the site."
    )


def address_towards(url: str) -> str:
    """Return the address from which this host reaches another one."""
    target = urlsplit(url)
    host = str(target.hostname)
    try:
        with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
            probe.connect((host, target.port or 1))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"{socket.gethostname()} has no route to the driver at {url}: "
            f"{error.strerror}. Set driver_interface in the site to one that nodes "
            "reach."
        ) from error


def address_of_node(interface: str | None, driver: str) -> str:
    """Return a node's address at an interface, by default the way to the driver."""
    return address_of_interface(interface) if interface else address_towards(driver)


def own_address(interface: str | None) -> str:
    """Return the address at which nodes reach this host."""
    if interface is not None:
        return address_of_interface(interface)
    firsts = [found[0] for found in _addresses().values()]
    candidates = {address for address in firsts if not ip_address(address).is_loopback}
    if len(candidates) == 1:
        return candidates.pop()

    with suppress(ClusterError):
        # An address of documentation, to which nothing is sent.
        if (guess := address_towards("tls://192.0.2.1:1")) in candidates:
            return guess

    with suppress(OSError):
        if (guess := socket.gethostbyname(socket.gethostname())) in candidates:
            return guess

    known = ", ".join(sorted(candidates)) or "none but loopback"
    raise ClusterError(
        f"Which address of {socket.gethostname()} do nodes reach? It has {known}. Set "
        "driver_interface in the site."
    )


def listening(address: str) -> socket.socket:
    """Return a socket that listens at a free port of an address of this host."""
    return socket.create_server((address, 0), family=family_of(address))


def port_text(server: socket.socket) -> str:
    """Return where a socket listens, such as ``10.0.0.7:41000``."""
    address, port = server.getsockname()[:2]
    return f"{bracketed(address)}:{port}"


def link_to_nodes(address: str, rdma: Path = _RDMA) -> tuple[str, float] | None:
    """Return by what this host sends to others, and its Gbit/s; None: it is not said.

    NCCL uses all active RDMA ports at once, and where there are none the interface that
    has the host's address.
    """
    ports = [
        float(rate.read_text().partition(" ")[0])
        for rate in rdma.glob("*/ports/*/rate")
        if "ACTIVE" in (rate.parent / "state").read_text()
    ]
    if ports:
        return counted(len(ports), "RDMA port"), sum(ports)

    names = (name for name, has in _addresses().items() if address in has)
    name = next(names, "")
    speed = psutil.net_if_stats()[name].speed if name else 0
    return (name, speed / 1000) if speed > 0 else None


def _addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface, IPv4 first."""
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for family in (socket.AF_INET, socket.AF_INET6):
            for address in addresses:
                numeric = address.address.partition("%")[0]
                if address.family == family and not ip_address(numeric).is_link_local:
                    found.setdefault(name, []).append(numeric)
    return found

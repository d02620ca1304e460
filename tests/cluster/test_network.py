import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from scalelab.cluster.network import (
    address_of_interface,
    address_towards,
    link_to_nodes,
    listening,
    own_address,
    port_text,
)
from scalelab.errors import ClusterError

ONE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.1.0.5", "fe80::1%eth0"]}
TWO = {**ONE, "ib0": ["10.2.0.5"], "docker0": ["172.17.0.1"]}


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(addresses: Mapping[str, list[str]]) -> None:
        def family(address: str) -> socket.AddressFamily:
            return socket.AF_INET6 if ":" in address else socket.AF_INET

        found = {
            name: [SimpleNamespace(address=a, family=family(a)) for a in has]
            for name, has in addresses.items()
        }
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)

    return make


def test_an_interface_has_an_address(interfaces: Callable[..., Any]) -> None:
    interfaces({**TWO, "ib1": ["fe80::2%ib1", "fd00::7"]})
    assert address_of_interface("ib0") == "10.2.0.5"
    assert address_of_interface("eth0") == "10.1.0.5"
    assert address_of_interface("ib1") == "fd00::7"


def test_an_unknown_interface_lists_the_known_ones(
    interfaces: Callable[..., Any],
) -> None:
    interfaces(ONE)
    with pytest.raises(
        ClusterError, match=r"no network interface 'ib0'.*eth0 \(10\.1\.0\.5\)"
    ):
        address_of_interface("ib0")


def test_the_only_address_is_the_driver_s(interfaces: Callable[..., Any]) -> None:
    interfaces(ONE)
    assert own_address(None) == "10.1.0.5"


def test_of_several_the_default_route_s_is_taken_then_the_name_s(
    interfaces: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(TWO)
    towards = "scalelab.cluster.network.address_towards"
    monkeypatch.setattr(towards, lambda url: "10.1.0.5")
    assert own_address(None) == "10.1.0.5"
    assert own_address("ib0") == "10.2.0.5"
    monkeypatch.setattr(towards, lambda url: "10.3.0.5")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.2.0.5")
    assert own_address(None) == "10.2.0.5"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.1")
    with pytest.raises(ClusterError, match=r"It has 10\.1\.0\.5, .*driver_interface"):
        own_address(None)


def test_towards_this_host_is_from_this_host() -> None:
    assert address_towards("tls://127.0.0.1:8786") == "127.0.0.1"
    assert address_towards("tls://[::1]:8786") == "::1"


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
)
def test_a_free_port_is_listened_at_and_named(address: str, host: str) -> None:
    with listening(address) as server:
        port = server.getsockname()[1]
        assert port_text(server) == f"{host}:{port}"
        socket.create_connection((address, port), 5).close()


def test_no_way_to_the_driver_is_an_error() -> None:
    with pytest.raises(ClusterError, match="has no route to the driver at tls://255"):
        address_towards("tls://255.255.255.255:1")


class TestTheLinkToOtherNodes:
    def test_active_ports_add_up(self, tmp_path: Path) -> None:
        states = ("4: ACTIVE", "4: ACTIVE", "1: DOWN")
        for number, state in enumerate(states):
            port = tmp_path / f"mlx5_{number}/ports/1"
            port.mkdir(parents=True)
            (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
            (port / "state").write_text(f"{state}\n")
        assert link_to_nodes("10.1.0.5", tmp_path) == ("2 RDMA ports", 400.0)

    @pytest.mark.parametrize(("speed", "said"), [(25000, ("eth0", 25.0)), (0, None)])
    def test_without_any_the_interface_counts(
        self,
        interfaces: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        speed: int,
        said: tuple[str, float] | None,
    ) -> None:
        interfaces(ONE)
        stats = {name: SimpleNamespace(speed=speed) for name in ONE}
        monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
        assert link_to_nodes("10.1.0.5", tmp_path) == said
        assert link_to_nodes("10.9.9.9", tmp_path) is None

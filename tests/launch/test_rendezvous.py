from __future__ import annotations

import pytest

from scalelab.errors import LaunchError
from scalelab.launch.rendezvous import (
    interface_of,
    network_environment,
    serve_store,
    tcp_rendezvous,
)


def test_store_listens_on_its_address_only_and_is_reached() -> None:
    import psutil
    from torch.distributed import TCPStore

    port = serve_store("127.0.0.1")
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("tcp")
        if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]
    client = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_stores_never_share_a_port() -> None:
    assert serve_store("127.0.0.1") != serve_store("127.0.0.1")


def test_interface_of_loopback() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.0.53") == "lo"


def test_interface_of_a_foreign_address() -> None:
    with pytest.raises(
        LaunchError,
        match=r"address=192\.0\.2\.1 is no address of .* It has .*127\.0\.0\.1 \(lo\)"
        ".*: "
        "give the node one of these",
    ):
        interface_of("192.0.2.1")


def test_ipv6_address_is_bracketed() -> None:
    assert tcp_rendezvous("::1", 5) == "tcp://[::1]:5"


def test_traffic_of_one_node_stays_inside_it() -> None:
    assert network_environment("file:///tmp/store", "10.0.0.1") == {
        "GLOO_SOCKET_IFNAME": "lo"
    }


def test_traffic_between_nodes_takes_the_nodes_interface() -> None:
    variables = network_environment("tcp://127.0.0.1:5", "127.0.0.1")
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "lo"
    assert variables["RES_OPTIONS"] == "timeout:1 attempts:3"

"""Nodes and their devices, and the protocol of the clusters that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One Dask worker and the devices that trials may use there.

    Parameters
    ----------
    name
        Name of the Dask worker; a worker that is restarted keeps it.
    address
        Address of the Dask worker; a restarted worker has another one.
    device_ids
        Slots in the order they are handed out: core numbers on CPU, indices or UUIDs on
        CUDA. An id that occurs twice is a core that several slots share.
    group
        The site's node group it belongs to; None where its nodes are alike.
    """

    name: str
    address: str
    host: str
    device_ids: tuple[str, ...]
    device_name: str
    num_cores: int
    memory_bytes: int
    group: str | None = None
    device_type: str = "cpu"

    @property
    def job(self) -> str:
        """Name of the batch job it belongs to; empty where there is none."""
        return self.name.partition("/")[2]


class Cluster(Protocol):
    """What the driver needs of any cluster: a client, and nodes with devices."""

    device_type: str
    """``cpu`` or ``cuda``."""

    @property
    def client(self) -> Client:
        """The Dask client through which the nodes are reached."""
        ...

    @property
    def dashboard_link(self) -> str | None:
        """Address of Dask's dashboard, on the loopback interface; None: it has none."""
        ...

    @property
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node the cluster has when all are up, by node group."""
        ...

    def nodes(self) -> list[Node]:
        """Return the nodes that answered a round trip just now."""
        ...

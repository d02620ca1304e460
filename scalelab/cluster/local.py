from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import Nanny

from scalelab.cluster.dask_nodes import SILENT, DaskNodes
from scalelab.cluster.devices import local_devices
from scalelab.cluster.network import LOOPBACK
from scalelab.cluster.node_options import run_security
from scalelab.cluster.node_plugin import NodePlugin, nanny_options
from scalelab.errors import ClusterError
from scalelab.site.profile import LocalSite

START_UP_TIMEOUT_S = 120.0


class LocalNodes(DaskNodes):
    """Nodes on this machine, each one a Dask worker process with its share of devices.

    Everything listens on the loopback interface only and speaks TLS with credentials
    made for this run; workers have no HTTP server. Without ``devices_per_node`` the
    machine's devices are divided among the nodes; where they are more than there are
    cores, several are the same core.
    """

    def __init__(
        self,
        num_nodes: int = 1,
        devices_per_node: int | None = None,
        device_type: str = "cpu",
        *,
        has_dashboard: bool = True,
        **agent_options: Any,
    ) -> None:
        super().__init__({None: device_type}, has_dashboard=has_dashboard)
        self._shares = divide_devices(num_nodes, devices_per_node, device_type)
        self._agent_options = agent_options

    @property
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node when all are up; local nodes are in no node group."""
        return {None: tuple(len(share) for share in self._shares)}

    def _start(self) -> None:
        scratch, security = self._make_scratch(), run_security()
        workers: dict[str, Any] = {}
        for index, share in enumerate(self._shares):
            plugin = NodePlugin(
                device_type=self.device_types[None],
                device_ids=share,
                own_session=True,
                **self._agent_options,
            )

            options = nanny_options(plugin, LOOPBACK, security, scratch)
            options["silence_logs"] = SILENT
            workers[f"node-{index}"] = {"cls": Nanny, "options": options}

        try:
            self._start_dask(LOOPBACK, scratch, security, workers)
            self.client.wait_for_workers(len(workers), timeout=START_UP_TIMEOUT_S)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise ClusterError(
                f"The local cluster of {len(workers)} nodes did not start: {error!r}. "
                "`scalelab doctor` says what this machine can run."
            ) from error


def divide_devices(
    num_nodes: int, devices_per_node: int | None, device_type: str
) -> list[tuple[str, ...]]:
    """Return each node's devices; nodes share devices only if there are too few."""
    present = local_devices(device_type)
    per_node = devices_per_node or max(1, len(present) // num_nodes)
    if device_type == "cuda" and num_nodes * per_node > len(present):
        raise ClusterError(
            f"{num_nodes} nodes x {per_node} CUDA devices are asked for, but this "
            f"machine offers {len(present)} ({', '.join(present)}). "
            "Ask for fewer nodes or devices."
        )

    slots = [present[index % len(present)] for index in range(num_nodes * per_node)]
    return [
        tuple(slots[first : first + per_node])
        for first in range(0, len(slots), per_node)
    ]


def local_nodes(
    site: LocalSite, *, run: Path, max_nodes: int, **agent_options: Any
) -> LocalNodes:
    """Return the local cluster with the number of nodes that its site declares."""
    return LocalNodes(
        site.num_nodes or 1,
        site.gpus_per_node,
        site.device_type.value,
        has_dashboard=site.dashboard,
        **agent_options,
    )

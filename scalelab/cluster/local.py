"""Nodes on this machine: the embedded default, with nothing to set up."""

from __future__ import annotations

import logging
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalelab.cluster.credentials import run_security
from scalelab.cluster.devices import local_devices
from scalelab.cluster.steady_batches import keep_batches_steady
from scalelab.errors import ClusterError
from scalelab.launch.protocol import DEFAULT_ENTRY

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

    from scalelab.cluster.nodes import Node

LOOPBACK = "127.0.0.1"
START_UP_TIMEOUT_S = 120.0
SILENT = logging.CRITICAL + 1
"""Dask's loggers would write over the live progress; what matters arrives as events."""

DASK_SETTINGS: dict[str, Any] = {
    # A lost worker ends its tasks at once; what to run again is the driver's decision.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.no-workers-timeout": "10s",
    "distributed.scheduler.work-stealing": False,
    # It compares times of day, so a clock that jumps would end every worker; a worker
    # that dies is noticed by its connection.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.active-memory-manager.start": False,
    # So long after a worker was lost, Dask closes its node for good if the node happens
    # to be restarting again just then. Nodes are to come back however often.
    "distributed.deploy.lost-worker-timeout": "52 weeks",
    # A node's worker only waits for ranks: what Dask would sample there disturbs them.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
}


class LocalNodes:
    """Nodes on this machine, each one a Dask worker process with its share of devices.

    Everything listens on the loopback interface only and speaks TLS with credentials
    made for this run; workers have no HTTP server.

    Parameters
    ----------
    num_nodes
        Nodes to divide the machine into.
    devices_per_node
        Devices of each node; None: the machine's devices divided among the nodes. More
        than there are cores: several devices are the same core.
    device_type
        ``cpu`` or ``cuda``.
    preload, search_path, entry
        As in :class:`~scalelab.launch.gang_agent.NodeAgent`.
    """

    _cluster: SpecCluster
    _client: Client

    def __init__(
        self,
        num_nodes: int = 1,
        devices_per_node: int | None = None,
        device_type: str = "cpu",
        *,
        preload: tuple[str, ...] = (),
        search_path: tuple[str, ...] = (),
        entry: str = DEFAULT_ENTRY,
    ) -> None:
        self.device_type = device_type
        self._shares = divide_devices(num_nodes, devices_per_node, device_type)
        self._agent_options: dict[str, Any] = {
            "preload": preload,
            "search_path": search_path,
            "entry": entry,
        }
        self._stack = ExitStack()

    @property
    def expected_devices(self) -> tuple[int, ...]:
        """Devices of each node when all are up."""
        return tuple(len(share) for share in self._shares)

    @property
    def client(self) -> Client:
        """The Dask client through which the nodes are reached."""
        return self._client

    @property
    def dashboard_link(self) -> str:
        """Address of Dask's dashboard, on the loopback interface."""
        return str(self._cluster.dashboard_link)

    def nodes(self) -> list[Node]:
        """Return the nodes that answered a round trip just now."""
        from scalelab.cluster.watch import ask_nodes

        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return ask_nodes(self._client, list(workers))

    def __enter__(self) -> Self:
        """Start the nodes.

        Raises
        ------
        ClusterError
            If a node does not come up.
        """
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the nodes and everything that runs on them."""
        self._stack.close()

    def _start(self) -> None:
        import dask
        from distributed import Client, SpecCluster

        keep_batches_steady()
        scratch = Path(tempfile.mkdtemp(prefix="scalelab-"))
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        settings = {**DASK_SETTINGS, "temporary-directory": str(scratch)}
        self._stack.enter_context(dask.config.set(settings))
        security = run_security()
        try:
            self._cluster = self._stack.enter_context(
                SpecCluster(
                    scheduler=_scheduler(security),
                    workers=self._workers(security, scratch),
                    security=security,
                    silence_logs=SILENT,
                    # At exit, Dask would fail on nodes that an interrupt kept from
                    # starting; those that did start are closed by the stack.
                    shutdown_on_close=False,
                )
            )
            self._client = self._stack.enter_context(
                Client(self._cluster, set_as_default=False)
            )
            self._client.wait_for_workers(len(self._shares), timeout=START_UP_TIMEOUT_S)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise ClusterError(
                f"The local cluster of {len(self._shares)} nodes did not start: "
                f"{error!r}. `scalelab doctor` says what this machine can run."
            ) from error

    def _workers(self, security: Any, scratch: Path) -> dict[str, Any]:
        from distributed import Nanny

        from scalelab.cluster.node_plugin import NodePlugin
        from scalelab.cluster.worker import NodeWorker

        workers = {}
        for index, share in enumerate(self._shares):
            plugin = NodePlugin(
                device_type=self.device_type,
                device_ids=share,
                own_session=True,
                **self._agent_options,
            )
            options = {
                "worker_class": NodeWorker,
                "plugins": (plugin,),
                # An attempt holds at least one device and one thread that waits for it;
                # the rest is for rendezvous and cancellation.
                "nthreads": 2 * len(share) + 4,
                "host": LOOPBACK,
                "protocol": "tls://",
                "security": security,
                "memory_limit": 0,
                "local_directory": str(scratch),
                "silence_logs": SILENT,
            }
            workers[f"node-{index}"] = {"cls": Nanny, "options": options}
        return workers


def divide_devices(
    num_nodes: int, devices_per_node: int | None, device_type: str
) -> list[tuple[str, ...]]:
    """Return each node's devices: disjoint while they last.

    Raises
    ------
    ClusterError
        If more CUDA devices are asked for than there are: unlike cores, they are never
        shared.

    Examples
    --------
    >>> divide_devices(2, 3, "cpu")[0][:1] == (local_devices("cpu")[0],)
    True
    """
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


def _scheduler(security: Any) -> dict[str, Any]:
    from distributed import Scheduler

    options = {
        "host": LOOPBACK,
        "protocol": "tls://",
        "security": security,
        "dashboard": True,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    return {"cls": Scheduler, "options": options}

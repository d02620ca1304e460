"""What runs inside a node's Dask worker: its agent, and the tasks the driver sends."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import psutil
from distributed import WorkerPlugin, get_worker

from scalelab.cluster.devices import device_name, local_devices
from scalelab.cluster.nodes import Node
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec

if TYPE_CHECKING:
    from distributed import Worker


class NodePlugin(WorkerPlugin):
    """Build the node's agent when its worker starts, and end it with the worker.

    ``setup`` runs in the main thread of the worker process. The rank server must be
    started there: it dies with the *thread* that started it.

    Parameters
    ----------
    device_type
        ``cpu`` or ``cuda``.
    device_ids
        The node's devices; None: all this process may use.
    preload
        Modules the rank server imports before it forks ranks.
    own_session
        Leave the driver's session, so that a Ctrl-C at its terminal does not reach the
        node before the driver can drain. Not under a batch system that tracks sessions.
    """

    name = "scalelab-node"

    def __init__(
        self,
        *,
        device_type: str,
        device_ids: tuple[str, ...] | None = None,
        preload: tuple[str, ...] = (),
        own_session: bool = False,
    ) -> None:
        self.device_type = device_type
        self.device_ids = device_ids
        self.preload = preload
        self.own_session = own_session

    def setup(self, worker: Worker) -> None:
        """Start the agent, whose rank server gets ready in the background."""
        if self.own_session:
            os.setsid()
        self.agent = NodeAgent(str(worker.name), self.device_type, self.preload)
        self.agent.start()

    def teardown(self, worker: Worker) -> None:
        """End the agent and whatever still runs under it."""
        self.agent.close()


def describe_node() -> Node:
    """Return the node this task runs on; having run is the round trip."""
    worker = get_worker()
    plugin = _plugin()
    device_ids = plugin.device_ids or local_devices(plugin.device_type)
    return Node(
        name=str(worker.name),
        address=worker.address,
        host=socket.gethostname(),
        device_ids=device_ids,
        device_name=device_name(plugin.device_type, device_ids),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
    )


def run_attempt(spec_json: str, node_rank: int, rendezvous: str | None) -> str:
    """Run this node's part of an attempt and return its result as JSON."""
    spec = AttemptSpec.from_json(json.loads(spec_json))
    return json.dumps(_plugin().agent.run(spec, node_rank, rendezvous).to_json())


def open_rendezvous(attempt_id: str) -> str:
    """Host the rendezvous of an attempt on this node and return its address."""
    return _plugin().agent.open_rendezvous(attempt_id)


def close_rendezvous(attempt_id: str) -> None:
    """End the rendezvous of an attempt."""
    _plugin().agent.close_rendezvous(attempt_id)


def cancel_attempt(attempt_id: str, reason: str) -> None:
    """End this node's ranks of an attempt."""
    _plugin().agent.cancel(attempt_id, reason)


def _plugin() -> NodePlugin:
    plugin = get_worker().plugins[NodePlugin.name]
    assert isinstance(plugin, NodePlugin)
    return plugin

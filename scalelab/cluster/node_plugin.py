"""The plugin of a node's Dask worker: its agent, and the tasks the driver sends."""

import json
import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import psutil
from distributed import Worker, WorkerPlugin, batched, get_worker
from distributed.comm.addressing import get_address_host
from distributed.security import Security

from scalelab.cluster.devices import device_name
from scalelab.cluster.nodes import Node
from scalelab.errors import LaunchError
from scalelab.experiment.program import CommandProgram
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.launchers.launcher import bracketed
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec, write_atomically


def keep_batches_steady() -> None:
    """Make this process count the time between batches on the monotonic clock.

    Dask sends messages in batches, a few milliseconds apart by the time of day
    (``distributed/batched.py``). A clock that is set back just after a batch, as when
    NTP corrects it, would hold the next one for as long as the step.
    """

    def until(sender: Any) -> float | None:
        due_s: float | None = getattr(sender, "_scalelab_due_s", None)
        # In the past once it is due: Dask compares it with a time read just before.
        return due_s and time.time() + due_s - time.monotonic()

    def wait(sender: Any, deadline: float | None) -> None:
        ahead_s = time.monotonic() - time.time()
        sender._scalelab_due_s = deadline and deadline + ahead_s

    batched.BatchedSend.next_deadline = property(until, wait)


class NodeWorker(Worker):
    """A Dask worker without an HTTP server.

    Dask's own listens on all addresses and asks nobody who they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_batches_steady()
        super().__init__(*args, **kwargs)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start no HTTP server."""


@dataclass(kw_only=True, eq=False)
class NodePlugin(WorkerPlugin):
    """Build the node's agent when its worker starts, and end it with the worker.

    Its rank server gets ready in the background, while the driver plans.
    """

    name: ClassVar[str] = "scalelab-node"

    device_type: str
    device_ids: tuple[str, ...]
    group: str | None = None
    preload: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    entry: str | None = None
    # Leave the driver's session, so that a Ctrl-C at its terminal does not reach the
    # node before the driver can drain. Not under a batch system that tracks sessions.
    own_session: bool = False

    def setup(self, worker: Worker) -> None:
        """Build the agent."""
        if self.own_session:
            os.setsid()
            # Let it be interrupted again, but not by what came while it started.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGINT, before)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        else:
            # A batch system sends it to every process of a job; the nanny decides.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        # What the agent puts on the local disk goes with the worker, however it ends.
        tempfile.tempdir = worker.local_directory
        self.agent = NodeAgent(
            str(worker.name),
            self.device_type,
            self.preload,
            entry=self.entry,
            address=get_address_host(worker.address),
            search_path=self.search_path,
        )

        self.is_ready = threading.Event()
        threading.Thread(target=self._get_ready, daemon=True).start()

    def _get_ready(self) -> None:
        # The first attempt tries again and then says what is wrong.
        with suppress(LaunchError):
            self.agent.start()
        self.is_ready.set()

    def teardown(self, worker: Worker) -> None:
        """End the agent and whatever still runs under it."""
        self.agent.close()


def nanny_options(
    plugin: NodePlugin, host: str, security: Security, scratch: str
) -> dict[str, Any]:
    """Return the options of the nanny that keeps a node's worker running."""
    return {
        "host": bracketed(host),
        "protocol": "tls://",
        "security": security,
        "worker_class": NodeWorker,
        "plugins": (plugin,),
        # An attempt holds at least one device and one thread that waits for it; the
        # rest is for rendezvous and cancellation.
        "nthreads": 2 * len(plugin.device_ids) + 4,
        "memory_limit": 0,
        "local_directory": scratch,
    }


def describe_node() -> Node:
    """Return the node this task runs on, once it can start ranks.

    Else ranks on a node that is ready would wait for those of one that is not.
    """
    worker, plugin = get_worker(), _plugin()
    plugin.is_ready.wait()
    plugin.agent.device_name = device_name(plugin.device_type, plugin.device_ids)

    return Node(
        name=str(worker.name),
        address=worker.address,
        host=socket.gethostname(),
        device_ids=plugin.device_ids,
        device_name=plugin.agent.device_name,
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        group=plugin.group,
        device_type=plugin.device_type,
    )


def run_attempt(spec_json: str, node_rank: int, rendezvous: str | None) -> str:
    """Run this node's part of an attempt and return its result as JSON."""
    spec = AttemptSpec.from_json(json.loads(spec_json))
    return json.dumps(_plugin().agent.run(spec, node_rank, rendezvous).to_json())


def open_rendezvous(attempt_id: str, serves_store: bool, num_ports: int) -> str:
    """Return this node's address, with the ports opened or found for an attempt."""
    return _plugin().agent.open_rendezvous(
        attempt_id, serves_store=serves_store, num_ports=num_ports
    )


def close_rendezvous(attempt_id: str) -> None:
    """End the rendezvous of an attempt."""
    _plugin().agent.close_rendezvous(attempt_id)


def cancel_attempt(attempt_id: str, reason: str, saves: bool) -> None:
    """End this node's ranks of an attempt; they may save what they have."""
    _plugin().agent.cancel(attempt_id, reason, saves=saves)


def prune_attempt(spec_json: str, reason: str) -> None:
    """End an attempt because its source says so, keeping what it measured.

    Ranks of a workload end well after the steps they are at; a command is stopped.
    """
    spec = AttemptSpec.from_json(json.loads(spec_json))
    if isinstance(spec.program, CommandProgram):
        _plugin().agent.cancel(spec.attempt_id, reason, Outcome.PRUNED, saves=True)
    else:
        files = spec.files
        write_atomically(files.prune, reason.encode(), below=files.run, durable=False)


def _plugin() -> NodePlugin:
    return cast(NodePlugin, get_worker().plugins[NodePlugin.name])

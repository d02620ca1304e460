"""Dask's scheduler and client in the driver, the same for every kind of cluster."""

import asyncio
import logging
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Self, cast

import dask
from distributed import Client, Scheduler, SpecCluster
from distributed.core import Status
from distributed.security import Security
from distributed.utils import LoopRunner, silence_logging_cmgr

from scalelab.cluster.network import LOOPBACK
from scalelab.cluster.node_plugin import keep_batches_steady
from scalelab.cluster.nodes import Node
from scalelab.cluster.watch import ask_nodes
from scalelab.experiment.program import Program, WorkloadProgram
from scalelab.kinds.launchers.launcher import bracketed
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import trainer_of
from scalelab.launch.scratch import make_scratch
from scalelab.site.profile import Site

# Dask's loggers would write over the live progress; what matters arrives as events.
SILENT = logging.CRITICAL + 1

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


class DaskNodes(ABC):
    """Nodes that are Dask workers of a scheduler in this process.

    The scheduler speaks TLS with credentials made for this run, on one address; its
    dashboard listens on the loopback interface only.
    """

    client: Client  # through which the nodes are reached
    _cluster: SpecCluster

    def __init__(
        self, device_types: Mapping[str | None, str], *, has_dashboard: bool
    ) -> None:
        self.device_types = device_types  # by node group
        self._stack = ExitStack()
        self._has_dashboard = has_dashboard

    @property
    @abstractmethod
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node there may be when all are up, by node group."""

    @property
    def address(self) -> str:
        """Address of Dask's scheduler."""
        return str(self._cluster.scheduler_address)

    @property
    def dashboard_link(self) -> str | None:
        """Address of Dask's dashboard, on the loopback interface; None: it has none."""
        if not self._has_dashboard:
            return None
        port = self._cluster.scheduler_info["services"]["dashboard"]
        return f"http://{LOOPBACK}:{port}/status"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of scheduler and client, in a thread of its own."""
        loop: Any = self.client.loop  # of tornado's, around asyncio's
        return cast(asyncio.AbstractEventLoop, loop.asyncio_loop)

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers the scheduler knows."""
        return list(self._scheduler.workers)

    @property
    def _scheduler(self) -> Any:
        return self._cluster.scheduler

    def nodes(self) -> list[Node]:
        """Return the nodes that answered a round trip just now."""
        return cast(list[Node], self.client.sync(ask_nodes, self.client, self.workers))

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _close_cluster(self) -> None:
        async def kill() -> None:
            for nanny in list(cast(Any, self._cluster).workers.values()):
                nanny.status = Status.closing  # it is to start no other worker
                if process := nanny.process and nanny.process.process:
                    await asyncio.gather(process.kill(), process.join())
            await self._scheduler.close()
            self._cluster.status = Status.closed

        try:
            self._cluster.close()
        except OSError:  # the scheduler cannot reach its workers
            self._cluster.sync(kill)

    @abstractmethod
    def _start(self) -> None:
        """Start the cluster; push on the stack whatever must be closed at its end."""

    def _make_scratch(self) -> str:
        scratch = make_scratch()
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        return str(scratch)

    def _start_dask(
        self, host: str, scratch: str, security: Security, workers: dict[str, Any]
    ) -> None:
        keep_batches_steady()
        for name in ("asyncio", "tornado.application"):
            logger = logging.getLogger(name)
            self._stack.callback(logger.setLevel, logger.level)
            logger.setLevel(SILENT)

        self._stack.enter_context(silence_logging_cmgr(SILENT))
        settings = {**DASK_SETTINGS, "temporary-directory": scratch}
        if not self._has_dashboard:
            settings["distributed.scheduler.http.routes"] = []

        self._stack.enter_context(dask.config.set(settings))
        runner = LoopRunner()
        with _ctrl_c_blocked():
            runner.start()

        self._stack.callback(runner.stop)
        scheduler = {
            "host": bracketed(host),
            "protocol": "tls://",
            "security": security,
            "dashboard": self._has_dashboard,
            "dashboard_address": f"{LOOPBACK}:0",
        }

        self._cluster = SpecCluster(
            loop=runner.loop,
            scheduler={"cls": Scheduler, "options": scheduler},
            workers=workers,
            security=security,
            silence_logs=SILENT,
            # At exit, Dask would fail on nodes that an interrupt kept from
            # starting; those that did start are closed by the stack.
            shutdown_on_close=False,
        )

        self._stack.callback(self._close_cluster)
        self.client = self._stack.enter_context(
            Client(self._cluster, set_as_default=False)
        )


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Keep Ctrl-C from threads that start meanwhile, and from the processes they start.

    A terminal sends it to all its processes. The driver decides what it means; a node
    that is still importing would fail. Nodes unblock it once they have a session of
    their own.
    """
    resource_tracker.ensure_running()  # else the thread that starts it is unblocked
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cluster_of(
    site: Site,
    *,
    run: Path,
    max_nodes: int,
    programs: Collection[Program],
    parallelism: Sequence[str],
) -> DaskNodes:
    """Return the cluster of a site; nodes start when it is entered."""
    entry: str | None = None
    preload: list[str] = []
    for program in programs:
        if isinstance(program, WorkloadProgram):
            trainer, name = trainer_of(program.name)
            entry = trainer.entry
            preload += trainer.preload(name, parallelism)
        elif program.launcher_row().serves_store:
            preload.append("torch.distributed")

    agent_options = {"preload": tuple(dict.fromkeys(preload)), "entry": entry}
    cluster = imported(site.cluster)
    return cast(DaskNodes, cluster(site, run=run, max_nodes=max_nodes, **agent_options))

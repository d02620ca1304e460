"""The driver's end of a cluster whose nodes come from elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from scalelab.cluster.credentials import run_security
from scalelab.cluster.local import DASK_SETTINGS, SILENT
from scalelab.cluster.network import LOOPBACK, own_address
from scalelab.cluster.node_options import NodeOptions, write_private, write_tls_files
from scalelab.cluster.steady_batches import keep_batches_steady
from scalelab.errors import ClusterError
from scalelab.experiment.node_jobs import NODE_SCRIPT, OPTIONS, node_script

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

    from scalelab.cluster.nodes import Node
    from scalelab.experiment.site import Site

T = TypeVar("T")


class Hub:
    """Dask's scheduler and client, and the files with which nodes join them.

    The scheduler speaks TLS with credentials made for this run, on one address; its
    dashboard listens on the loopback interface only.

    Parameters
    ----------
    site
        Where nodes come from.
    directory
        For the files, on a file system the nodes share.
    preload, search_path, entry
        As in :class:`~scalelab.launch.gang_agent.NodeAgent`.
    """

    _cluster: SpecCluster
    client: Client

    def __init__(self, site: Site, directory: Path, **agent_options: Any) -> None:
        self._site = site
        self._directory = directory
        self._agent_options = agent_options
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        """Address of Dask's scheduler."""
        return str(self._cluster.scheduler_address)

    @property
    def dashboard_link(self) -> str:
        """Address of Dask's dashboard, on the loopback interface."""
        port = self._cluster.scheduler_info["services"]["dashboard"]
        return f"http://{LOOPBACK}:{port}/status"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of scheduler and client, in a thread of its own."""
        loop: Any = self.client.loop  # of tornado's, around asyncio's
        found: asyncio.AbstractEventLoop = loop.asyncio_loop
        return found

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers the scheduler knows."""
        scheduler: Any = self._cluster.scheduler
        return list(scheduler.workers)

    def nodes(self) -> list[Node]:
        """Return the nodes that answered a round trip just now."""
        from scalelab.cluster.watch import ask_nodes

        return ask_nodes(self.client, self.workers)

    async def close_workers(self, addresses: Iterable[str]) -> None:
        """Let workers and their nannies end by themselves; in the event loop."""
        scheduler: Any = self._cluster.scheduler
        for address in addresses:
            await scheduler.remove_worker(
                address, expected=True, stimulus_id="scalelab-give-back"
            )

    def wait_for(self, awaitable: Awaitable[T], timeout_s: float) -> T:
        """Run something in the event loop and return what it returns."""

        async def run() -> T:
            return await asyncio.wait_for(awaitable, timeout_s)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    def __enter__(self) -> Self:
        """Start the scheduler and write the files.

        Raises
        ------
        ClusterError
            If it does not start.
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
        """End the scheduler, with it the nodes, and remove the credentials."""
        self._stack.close()

    def _start(self) -> None:
        import dask
        from distributed import Client, SpecCluster

        keep_batches_steady()
        scratch = tempfile.mkdtemp(prefix="scalelab-")
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        settings = {**DASK_SETTINGS, "temporary-directory": scratch}
        self._stack.enter_context(dask.config.set(settings))
        security = run_security()
        host = own_address(self._site.driver_interface)
        try:
            self._cluster = self._stack.enter_context(
                SpecCluster(
                    scheduler=_scheduler(host, security),
                    workers={},
                    security=security,
                    silence_logs=SILENT,
                    shutdown_on_close=False,
                )
            )
            self.client = self._stack.enter_context(
                Client(self._cluster, set_as_default=False)
            )
        except (OSError, RuntimeError, TimeoutError) as error:
            raise ClusterError(
                f"Dask's scheduler did not start on {host}: {error!r}. Set "
                "driver_interface in the site to the one at which nodes reach this "
                "machine."
            ) from error
        self._write_files(security)

    def _write_files(self, security: Any) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        tls_files = write_tls_files(security, self._directory)
        options = NodeOptions(
            scheduler=self.address,
            tls_files=tls_files,
            device_type=self._site.device_type.value,
            num_devices=self._site.devices_per_node,
            interface=self._site.interface,
            **self._agent_options,
        )
        options.write(self._directory / OPTIONS)
        script = node_script(self._site, self._directory)
        write_private(self._directory / NODE_SCRIPT, script)
        for path in (*tls_files, self._directory / OPTIONS):
            self._stack.callback(Path(path).unlink, missing_ok=True)


def _scheduler(host: str, security: Any) -> dict[str, Any]:
    from distributed import Scheduler

    options = {
        "host": f"[{host}]" if ":" in host else host,
        "protocol": "tls://",
        "security": security,
        "dashboard": True,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    return {"cls": Scheduler, "options": options}

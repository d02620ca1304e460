"""The hub cluster: Dask's scheduler in the driver, which remote nodes join."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scalelab.cluster.dask_nodes import DaskNodes
from scalelab.cluster.network import own_address
from scalelab.cluster.node_options import (
    NodeOptions,
    run_security,
    write_private,
    write_tls_files,
)
from scalelab.errors import ClusterError
from scalelab.records.attempt_io import storing
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.site.job_script import node_script, options_file, script_file

if TYPE_CHECKING:
    from scalelab.site.profile import RemoteSite

T = TypeVar("T")


class HubCluster(DaskNodes):
    """Dask's scheduler and client, and the files with which nodes join them."""

    def __init__(
        self, site: RemoteSite, *, run: Path, max_nodes: int, **agent_options: Any
    ) -> None:
        super().__init__(site.device_type.value, has_dashboard=site.dashboard)
        self.site = site
        self._run_name = run.name
        self._directory = run / CLUSTER_DIRECTORY
        self._max_nodes = max_nodes
        self._agent_options = agent_options

    @property
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node there may be, by node group."""
        return {
            name: (group.devices_per_node,) * (group.nodes or self._max_nodes)
            for name, group in self.site.groups.items()
        }

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

    def _start(self) -> None:
        host, security = own_address(self.site.driver_interface), run_security()
        try:
            self._start_dask(host, self._make_scratch(), security, {})
        except (OSError, RuntimeError, TimeoutError) as error:
            raise ClusterError(
                f"Dask's scheduler did not start on {host}: {error!r}. Set "
                "driver_interface in the site to the one at which nodes reach this "
                "machine."
            ) from error
        with storing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        tls_files = write_tls_files(security, self._directory)
        for file in tls_files:
            self._stack.callback(Path(file).unlink, missing_ok=True)
        for site in self.site.groups.values():
            options = NodeOptions(
                scheduler=self.address,
                tls_files=tls_files,
                device_type=site.device_type.value,
                num_devices=site.devices_per_node,
                group=site.group,
                interface=site.interface,
                **self._agent_options,
            )
            path = self._directory / options_file(site.group)
            options.write(path)
            self._stack.callback(path.unlink, missing_ok=True)
            script = node_script(site, self._directory)
            write_private(self._directory / script_file(site.group), script)

"""The hub cluster: Dask's scheduler in the driver, which remote nodes join.

They are those of batch jobs (``batch.nodes``) or of the one job the driver runs in.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from scalelab.cluster.dask_nodes import DaskNodes
from scalelab.cluster.network import own_address
from scalelab.cluster.node_options import (
    NodeOptions,
    run_security,
    write_private,
    write_tls_files,
)
from scalelab.errors import ClusterError
from scalelab.inputs.plain_files import (
    last_log_lines,
    make_folder,
    open_to_append,
)
from scalelab.kinds.batch_systems import held_allocation
from scalelab.records.attempt import storing
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.site.job_script import node_script, options_file, script_file
from scalelab.site.profile import AllocationSite, RemoteSite

T = TypeVar("T")
_LOOK_AGAIN_S = 0.2
_LEAVE_S = 10.0


class HubCluster(DaskNodes):
    """Dask's scheduler and client, and the files with which nodes join them."""

    def __init__(
        self, site: RemoteSite, *, run: Path, max_nodes: int, **agent_options: Any
    ) -> None:
        types = {n: group.device_type.value for n, group in site.groups.items()}
        super().__init__(types, has_dashboard=site.dashboard)
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
        for address in addresses:
            await self._scheduler.remove_worker(
                address, expected=True, stimulus_id="scalelab-give-back"
            )

    def wait_for(self, awaitable: Awaitable[T], timeout_s: float) -> T:
        """Run something in the event loop and return what it returns."""
        call = asyncio.wait_for(awaitable, timeout_s)
        return asyncio.run_coroutine_threadsafe(call, self.loop).result()

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
            make_folder(self._directory, below=self._directory.parent)

        tls_files = write_tls_files(security, self._directory)
        for file in tls_files.values():
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
            write_private(
                self._directory / script_file(site.group),
                node_script(site, self._directory),
            )


class AllocationNodes(HubCluster):
    """The nodes of the batch job that the driver itself runs in."""

    def __init__(
        self, site: AllocationSite, *, run: Path, max_nodes: int, **agent_options: Any
    ) -> None:
        super().__init__(site, run=run, max_nodes=max_nodes, **agent_options)
        self._system, self._job, self._num_nodes = held_allocation(os.environ)
        self._log = self._directory / f"{self._job}.log"

    @property
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node of the allocation, the same for every node."""
        return {None: (self.site.devices_per_node,) * self._num_nodes}

    def _start(self) -> None:
        super()._start()
        command = self._system.start_on_all(
            [str(self._directory / script_file(self.site.group)), self._job],
            self._num_nodes,
            cores=self.site.cores_per_node,
            in_held_job=True,
        )
        with storing(self._log):
            output = open_to_append(self._log, below=self._directory.parent)
        self._stack.callback(os.close, output)

        launcher = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # A Ctrl-C at the driver's terminal is the driver's.
            start_new_session=True,
        )

        self._stack.callback(self._end, launcher)

        deadline_s = time.monotonic() + self.site.start_timeout
        while (num_up := len(self.workers)) < self._num_nodes:
            if launcher.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{num_up} of the {self._num_nodes} nodes of {self._job} answered "
                    f"within {self.site.start_timeout:g} s. The end of {self._log}:\n"
                    f"{last_log_lines(self._log)}"
                )
            time.sleep(_LOOK_AGAIN_S)

    def _end(self, launcher: subprocess.Popen[bytes]) -> None:
        self.wait_for(self.close_workers(self.workers), _LEAVE_S)
        try:
            launcher.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait()

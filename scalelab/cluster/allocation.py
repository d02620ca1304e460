"""Nodes of a job that is held already, by ``salloc``, ``sbatch`` or ``qsub``."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalelab.cluster.batch_queue import log_tail
from scalelab.cluster.hub import Hub
from scalelab.errors import ClusterError
from scalelab.experiment.node_jobs import start_on_all

if TYPE_CHECKING:
    from distributed import Client

    from scalelab.cluster.nodes import Node
    from scalelab.experiment.site import Site

_LOOK_AGAIN_S = 0.2
_LEAVE_S = 10.0


class AllocationNodes:
    """The nodes of the SLURM or PBS job that the driver itself runs in.

    Parameters
    ----------
    site
        A site with scheduler allocation.
    directory
        Where the cluster's files are: on a file system the nodes share.
    preload, search_path, entry
        As in :class:`~scalelab.launch.gang_agent.NodeAgent`.

    Raises
    ------
    ClusterError
        If the driver runs in no such job.
    """

    def __init__(self, site: Site, *, directory: Path, **agent_options: Any) -> None:
        self.device_type = site.device_type.value
        self._site = site
        self._directory = directory
        self._job, self._num_nodes = held_allocation(os.environ)
        self._hub = Hub(site, directory, **agent_options)
        self._stack = ExitStack()

    @property
    def expected_devices(self) -> tuple[int, ...]:
        """Devices of each node of the allocation."""
        return (self._site.devices_per_node,) * self._num_nodes

    @property
    def client(self) -> Client:
        """The Dask client through which the nodes are reached."""
        return self._hub.client

    @property
    def dashboard_link(self) -> str:
        """Address of Dask's dashboard, on the loopback interface."""
        return self._hub.dashboard_link

    def nodes(self) -> list[Node]:
        """Return the nodes that answered a round trip just now."""
        return self._hub.nodes()

    def __enter__(self) -> Self:
        """Start the nodes and wait until all have answered.

        Raises
        ------
        ClusterError
            If one does not.
        """
        with ExitStack() as stack:
            stack.enter_context(self._hub)
            self._log = self._directory / f"{self._job}.log"
            output = stack.enter_context(self._log.open("ab"))
            command = start_on_all(
                self._site,
                self._num_nodes,
                self._directory,
                self._job,
                pbs="PBS_JOBID" in os.environ,
            )
            launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C at the driver's terminal is the driver's.
                start_new_session=True,
            )
            stack.callback(self._end, launcher)
            self._await_nodes(launcher)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the nodes; the allocation stays."""
        self._stack.close()

    def _await_nodes(self, launcher: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self._site.start_timeout
        while (num_up := len(self._hub.workers)) < self._num_nodes:
            if launcher.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{num_up} of the {self._num_nodes} nodes of {self._job} answered "
                    f"within {self._site.start_timeout:g} s. The end of {self._log}:\n"
                    f"{log_tail(self._log)}"
                )
            time.sleep(_LOOK_AGAIN_S)

    def _end(self, launcher: subprocess.Popen[bytes]) -> None:
        self._hub.wait_for(self._hub.close_workers(self._hub.workers), _LEAVE_S)
        try:
            launcher.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait()


def held_allocation(environment: os._Environ[str] | dict[str, str]) -> tuple[str, int]:
    """Return the name of the job that this process runs in, and its nodes.

    Parameters
    ----------
    environment
        The process's.

    Raises
    ------
    ClusterError
        If it runs in no job of SLURM or PBS.

    Examples
    --------
    >>> held_allocation({"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "4"})
    ('job-17', 4)
    """
    if job_id := environment.get("SLURM_JOB_ID"):
        return f"job-{job_id}", int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    if (job_id := environment.get("PBS_JOBID")) and "PBS_NODEFILE" in environment:
        # A line per chunk and MPI process: a host may occur several times.
        hosts = Path(environment["PBS_NODEFILE"]).read_text().split()
        return f"job-{job_id.partition('.')[0]}", len(set(hosts))
    raise ClusterError(
        "scheduler=allocation, but this is no job: neither SLURM_JOB_ID nor PBS_JOBID "
        "and PBS_NODEFILE are set. Sweep inside salloc, sbatch or qsub, or write "
        "scheduler: slurm or pbs."
    )

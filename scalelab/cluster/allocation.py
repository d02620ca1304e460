"""Nodes of a job that is held already, by ``salloc``, ``sbatch`` or ``qsub``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.cluster.hub import HubCluster
from scalelab.errors import ClusterError
from scalelab.records.attempt_io import storing
from scalelab.records.log_tail import last_log_lines
from scalelab.site.node_script import start_on_all

if TYPE_CHECKING:
    from scalelab.site.profile import Site

_LOOK_AGAIN_S = 0.2
_LEAVE_S = 10.0


class AllocationNodes(HubCluster):
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
        super().__init__(site, directory, **agent_options)
        self._job, self._num_nodes = held_allocation(os.environ)
        self._log = directory / f"{self._job}.log"

    @property
    def expected_devices(self) -> Mapping[str | None, tuple[int, ...]]:
        """Devices of each node of the allocation; its nodes are alike."""
        return {None: (self.site.devices_per_node,) * self._num_nodes}

    def _start(self) -> None:
        super()._start()
        command = start_on_all(
            self.site,
            self._num_nodes,
            self._directory,
            self._job,
            pbs="PBS_JOBID" in os.environ,
        )
        with storing(self._log):
            output = self._stack.enter_context(self._log.open("ab"))
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # A Ctrl-C at the driver's terminal is the driver's.
            start_new_session=True,
        )
        self._stack.callback(self._end, launcher)
        self._await_nodes(launcher)

    def _await_nodes(self, launcher: subprocess.Popen[bytes]) -> None:
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

"""The nodes of the batch job that the sweep was started in."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.cluster.hub import HubCluster
from scalelab.errors import ClusterError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem, system_of_job
from scalelab.records.attempt_io import storing
from scalelab.records.plain_files import last_log_lines
from scalelab.site.job_script import start_on_all

if TYPE_CHECKING:
    from scalelab.site.profile import AllocationSite

_LOOK_AGAIN_S = 0.2
_LEAVE_S = 10.0


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
        command = start_on_all(
            self.site,
            self._system,
            self._num_nodes,
            self._directory,
            self._job,
            in_held_job=True,
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


def held_allocation(environment: Mapping[str, str]) -> tuple[BatchSystem, str, int]:
    """Return the batch system, name and nodes of the job that this process runs in.

    Examples
    --------
    >>> held_allocation({"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "4"})[1:]
    ('job-17', 4)
    """
    if system := system_of_job(environment):
        # An id may end in the name of a server.
        number = environment[system.job_variable].partition(".")[0]
        if num_nodes := system.num_held_nodes(environment):
            return system, f"job-{number}", num_nodes
        raise ClusterError(
            f"scheduler=allocation: {system.name} does not say which nodes job "
            f"{number} has. Write scheduler: {system.name}."
        )
    variables = " or ".join(each.job_variable for each in BATCH_SYSTEMS)
    raise ClusterError(
        f"scheduler=allocation, but this process runs in no batch job: no {variables} "
        "is set. Sweep inside a job, or name the batch system as the scheduler: "
        f"{' or '.join(BATCH_SYSTEMS.names)}."
    )

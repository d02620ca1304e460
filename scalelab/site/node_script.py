"""The job scripts whose nodes a sweep runs on; nothing is submitted here.

A job of one node starts the worker of that node by itself; a job of several nodes has
the batch system start it once on each of them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.batch_systems import BatchSystem
from scalelab.site.batch_site import BatchSite
from scalelab.site.directives import job_script, with_batch_system
from scalelab.site.profile import RemoteSite, Site

NODE_MODULE = "scalelab.cluster.node_process"


def options_file(group: str | None) -> str:
    """Return the name of the file with which the nodes of a group join the driver."""
    return f"nodes-{group}.json" if group else "nodes.json"


def script_file(group: str | None) -> str:
    """Return the name of the script that each node of a group's larger job runs."""
    return f"node-{group}.sh" if group else "node.sh"


def node_command(site: Site, directory: Path, job_name: str) -> str:
    """Return the shell line that makes the node it runs on one of the sweep's."""
    python = site.python or sys.executable
    options = directory / options_file(site.group)
    words = [python, "-m", NODE_MODULE, str(options), job_name]
    return f"exec {shlex.join(words)}"


def node_script(site: Site, directory: Path) -> str:
    """Return what each node of a larger job runs; its argument is the job's name."""
    # pbsdsh starts tasks without what the job's script has exported.
    line = node_command(site, directory, "JOB").removesuffix("JOB") + '"$1"'
    return "\n".join(["#!/usr/bin/env bash", *site.prologue, line]) + "\n"


def node_job_script(
    site: Site, num_nodes: int, *, job_name: str, directory: Path
) -> str:
    r"""Return the script of a job that holds nodes for a sweep.

    Examples
    --------
    >>> from scalelab.site.choice import site_of
    >>> site = site_of({
    ...     "scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 4,
    ...     "python": "python3",
    ... })
    >>> print(node_job_script(site, 1, job_name="vit-1", directory=Path("/data")))
    #!/usr/bin/env bash
    #SBATCH --job-name=vit-1
    #SBATCH --nodes=1
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=4
    #SBATCH --no-requeue
    #SBATCH --output=/data/vit-1.log
    exec python3 -m scalelab.cluster.node_process /data/nodes.json vit-1
    <BLANKLINE>
    """
    asked = with_batch_system(site)
    refuse_log_directory(site, directory)
    allocation = Allocation(devices_per_node=(site.devices_per_node,) * num_nodes)
    return job_script(
        site,
        allocation,
        [_start_line(asked, num_nodes, directory, job_name)],
        job_name=job_name,
        log=directory / f"{job_name}.log",
    )


def refuse_log_directory(site: Site, directory: Path, *, option: str = "--run") -> None:
    """Refuse a directory in which the site's batch system cannot write a log."""
    system = site.batch_system
    refused = system.refused_in_logs if system else None
    if refused and (found := refused.search(str(directory))):
        raise SpecError(
            f"{str(directory)!r} holds {found[0]!r}, which {site.scheduler} does not "
            "take in the path of a log. Choose another directory for the run with "
            f"{option}."
        )


def _start_line(site: BatchSite, num_nodes: int, directory: Path, job: str) -> str:
    if num_nodes == 1:
        return node_command(site, directory, job)
    words = start_on_all(site, site.batch_system, num_nodes, directory, job)
    return f"exec {shlex.join(words)}"


def start_on_all(
    site: RemoteSite,
    system: BatchSystem,
    num_nodes: int,
    directory: Path,
    job_name: str,
    *,
    in_held_job: bool = False,
) -> list[str]:
    """Return the command that runs the node script once on each node of a job."""
    words = [str(directory / script_file(site.group)), job_name]
    return system.start_on_all(
        words, num_nodes, cores=site.cores_per_node, in_held_job=in_held_job
    )

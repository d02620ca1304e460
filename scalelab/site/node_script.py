"""The batch jobs whose nodes a sweep runs on; nothing is submitted here.

A job of one node starts that node's end of the sweep by itself; one of several starts
it once on each of its nodes, by ``srun`` or ``pbsdsh``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.site.directives import job_script

if TYPE_CHECKING:
    from scalelab.site.profile import Site

NODE_MODULE = "scalelab.cluster.node_process"


def options_file(group: str | None) -> str:
    """Return the name of the file with which the nodes of a group join the driver."""
    return f"nodes-{group}.json" if group else "nodes.json"


def script_file(group: str | None) -> str:
    """Return the name of the script that each node of a group's larger job runs."""
    return f"node-{group}.sh" if group else "node.sh"


def node_command(site: Site, directory: Path, job_name: str) -> str:
    """Return the shell line that makes the node it runs on one of the sweep's.

    Parameters
    ----------
    site
        Names the interpreter; default: this one.
    directory
        Where the cluster's files are, on a file system the nodes share.
    job_name
        Name of the job that the node belongs to.
    """
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

    Parameters
    ----------
    site
        A site with scheduler slurm or pbs.
    num_nodes
        Nodes of the job, all of their devices included.
    job_name
        Name of the job, and of its log.
    directory
        Where the cluster's files are, on a file system the nodes share.

    Raises
    ------
    SpecError
        If the site has no batch system, or it cannot write a log there.

    Examples
    --------
    >>> from scalelab.site.profile import Site
    >>> site = Site(
    ...     scheduler="slurm", device_type="cuda", gpus_per_node=4, python="python3"
    ... )
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
    refuse_log_directory(site, directory)
    allocation = Allocation(devices_per_node=(site.devices_per_node,) * num_nodes)
    return job_script(
        site,
        allocation,
        [_start_line(site, num_nodes, directory, job_name)],
        job_name=job_name,
        log=directory / f"{job_name}.log",
    )


def refuse_log_directory(site: Site, directory: Path) -> None:
    """Refuse a directory in which the site's batch system cannot write a log.

    Raises
    ------
    SpecError
        If its path holds what the batch system does not take.
    """
    forbidden = {"slurm": "%\\\n", "pbs": " \t\n"}.get(site.scheduler, "")
    if any(letter in str(directory) for letter in forbidden):
        raise SpecError(
            f"{str(directory)!r} holds {' or '.join(map(repr, forbidden))}, which "
            f"{site.scheduler} does not take in the path of a log. Choose another "
            "directory for the run with --run."
        )


def _start_line(site: Site, num_nodes: int, directory: Path, job_name: str) -> str:
    if num_nodes == 1:
        return node_command(site, directory, job_name)
    return f"exec {shlex.join(start_on_all(site, num_nodes, directory, job_name))}"


def start_on_all(
    site: Site, num_nodes: int, directory: Path, job_name: str, *, pbs: bool = False
) -> list[str]:
    """Return the command that runs the node script once on each node of a job."""
    script = ["bash", str(directory / script_file(site.group)), job_name]
    if pbs or site.scheduler == "pbs":
        return ["pbsdsh", "--", "/bin/bash", *script[1:]]
    srun = ["srun", f"--nodes={num_nodes}", f"--ntasks={num_nodes}"]
    # A job that has lost a node cannot run what it was asked for: it ends whole.
    srun += ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    if site.scheduler == "allocation":
        # The shell that holds it may be a step itself.
        srun.append("--overlap")
    if site.cores_per_node:
        # srun does not take it over from the job since SLURM 22.05.
        srun.append(f"--cpus-per-task={site.cores_per_node}")
    return [*srun, *script]

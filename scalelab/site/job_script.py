"""The text of batch jobs: a request, the nodes of a sweep, a detached driver.

Nothing is submitted here. A job of one node starts the worker of that node by itself; a
job of several nodes has the batch system start it once on each of them.
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.site.batch_site import BatchSite
from scalelab.site.profile import Site


def directives(
    site: Site,
    allocation: Allocation,
    *,
    job_name: str,
    walltime_s: float | None = None,
    log: Path | None = None,
) -> list[str]:
    r"""Return the lines of a job script by which it asks for an allocation.

    Examples
    --------
    >>> from scalelab.site.choice import site_of
    >>> gpus = {"device_type": "cuda", "gpus_per_node": 4}
    >>> site = site_of({"scheduler": "slurm", **gpus})
    >>> print(*directives(site, Allocation.packed(8, 4), job_name="vit"), sep="\n")
    #SBATCH --job-name=vit
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=4
    """
    asked = with_batch_system(site)
    largest = max(allocation.devices_per_node)
    if site.gpus_per_node and largest > site.gpus_per_node:
        raise SpecError(
            f"the allocation {allocation} needs {largest} devices on a node, but a "
            f"node of site {site.name!r} has {site.gpus_per_node}. Spread it over more "
            "nodes.",
            code="more_than_a_node",
        )

    system = asked.batch_system
    walltime_s = walltime_s or asked.walltime

    options = [*asked.request(allocation, job_name, walltime_s), *asked.directives]
    if log is not None:
        options += system.log_options(log)

    return [f"{system.directive} {option}" for option in options]


def job_script(
    site: Site,
    allocation: Allocation,
    commands: Iterable[str],
    *,
    job_name: str,
    walltime_s: float | None = None,
    log: Path | None = None,
) -> str:
    """Return a whole job script: directives, the site's prologue, commands."""
    asked = directives(
        site, allocation, job_name=job_name, walltime_s=walltime_s, log=log
    )
    return "\n".join(["#!/usr/bin/env bash", *asked, *site.prologue, *commands]) + "\n"


def with_batch_system(site: Site) -> BatchSite:
    """Return the site as a :class:`BatchSite`; refuse one without a batch system."""
    if isinstance(site, BatchSite):
        return site
    names = " or ".join(BATCH_SYSTEMS.names)
    raise SpecError(
        f"site {site.name!r} has scheduler={site.scheduler}, which has no job "
        f"script. Name a site with scheduler {names}.",
        code="site_without_job_script",
    )


NODE_MODULE = "scalelab.cluster.node_process"


def options_file(group: str | None) -> str:
    """Return the name of the file with which the nodes of a group join the driver."""
    return f"nodes-{group}.json" if group else "nodes.json"


def script_file(group: str | None) -> str:
    """Return the name of the script that each node of a group's larger job runs."""
    return f"node-{group}.sh" if group else "node.sh"


def node_command(site: Site, directory: Path, job_name: str) -> str:
    """Return the shell line that makes the node it runs on one of the sweep's."""
    options = str(directory / options_file(site.group))
    words = [site.python or sys.executable, "-m", NODE_MODULE, options, job_name]
    return f"exec {shlex.join(words)}"


def node_script(site: Site, directory: Path) -> str:
    """Return what each node of a larger job runs; its argument is the job's name."""
    # pbsdsh starts tasks without what the job's script has exported.
    line = node_command(site, directory, "JOB").removesuffix("JOB") + '"$1"'
    return "\n".join(["#!/usr/bin/env bash", *site.prologue, line]) + "\n"


def node_job_script(
    site: Site, num_nodes: int, *, job_name: str, directory: Path
) -> str:
    """Return the script of a job that holds nodes for a sweep."""
    asked = with_batch_system(site)
    refuse_log_directory(site, directory)

    start = node_command(site, directory, job_name)
    if num_nodes > 1:
        start = asked.batch_system.start_on_all(
            [str(directory / script_file(site.group)), job_name],
            num_nodes,
            cores=asked.cores_per_node,
        )

    return job_script(
        site,
        Allocation(devices_per_node=(site.devices_per_node,) * num_nodes),
        [start],
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
            f"{option}.",
            code="log_path_refused",
        )


def driver_job_script(
    site: Site,
    arguments: Sequence[str],
    *,
    job_name: str,
    directory: Path,
    log: Path,
    job_log: Path,
    after: str | None = None,
) -> str:
    """Return the script of a job that runs ``scalelab`` and no trial."""
    if not isinstance(site, BatchSite) or site.driver_job is None:
        raise SpecError(
            f"site {site.name!r} does not say in what job a driver may run. Add, for "
            "example, driver_job: {walltime: 24h}.",
            code="no_driver_job",
        )

    refuse_log_directory(site, job_log.parent)
    words = [site.python or sys.executable, "-m", "scalelab", *arguments]
    command = f"exec {shlex.join(words)} >>{shlex.quote(str(log))} 2>&1"

    return job_script(
        site.for_driver(site.driver_job, after),
        Allocation(devices_per_node=(1,)),
        [f"cd {shlex.quote(str(directory))}", command],
        job_name=job_name,
        log=job_log,
    )

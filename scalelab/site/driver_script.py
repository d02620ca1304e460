"""The job script of a detached sweep's driver; nothing is submitted here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.site.batch_site import BatchSite
from scalelab.site.directives import job_script
from scalelab.site.node_script import refuse_log_directory
from scalelab.site.profile import Site


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
    r"""Return the script of a job that runs ``scalelab`` and no trial.

    Examples
    --------
    >>> from scalelab.site.choice import site_of
    >>> site = site_of({
    ...     "scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 4,
    ...     "python": "python3", "partition": "gpu",
    ...     "driver_job": {"partition": "cpu", "walltime": "24h"},
    ... })
    >>> where = {"log": Path("/data/driver.log"), "job_log": Path("/data/job.log")}
    >>> print(driver_job_script(
    ...     site, ["sweep", "vit.yaml"], job_name="vit-driver-1",
    ...     directory=Path("/home/me"), **where
    ... ))
    #!/usr/bin/env bash
    #SBATCH --job-name=vit-driver-1
    #SBATCH --partition=cpu
    #SBATCH --nodes=1
    #SBATCH --ntasks-per-node=1
    #SBATCH --cpus-per-task=1
    #SBATCH --mem=1908M
    #SBATCH --time=1-00:00:00
    #SBATCH --no-requeue
    #SBATCH --output=/data/job.log
    cd /home/me
    exec python3 -m scalelab sweep vit.yaml >>/data/driver.log 2>&1
    <BLANKLINE>
    """
    if not isinstance(site, BatchSite) or site.driver_job is None:
        raise SpecError(
            f"site {site.name!r} does not say in what job a driver may run. Add, for "
            "example, driver_job: {walltime: 24h}."
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

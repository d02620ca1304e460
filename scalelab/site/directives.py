"""Job scripts: a site and an allocation as lines; nothing is submitted here."""

from __future__ import annotations

from collections.abc import Iterable
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
            "nodes."
        )
    options = asked.request(allocation, job_name, walltime_s or asked.walltime)
    return _lines(asked, (*options, *asked.directives))


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
    head = directives(site, allocation, job_name=job_name, walltime_s=walltime_s)
    if log is not None:
        asked = with_batch_system(site)
        head += _lines(asked, asked.batch_system.log_options(log))
    lines = ["#!/usr/bin/env bash", *head, *site.prologue, *commands]
    return "\n".join(lines) + "\n"


def _lines(site: BatchSite, options: Iterable[str]) -> list[str]:
    return [f"{site.batch_system.directive} {option}" for option in options]


def with_batch_system(site: Site) -> BatchSite:
    """Return the site as a :class:`BatchSite`; refuse one without a batch system."""
    if isinstance(site, BatchSite):
        return site
    names = " or ".join(BATCH_SYSTEMS.names)
    raise SpecError(
        f"site {site.name!r} has scheduler={site.scheduler}, which has no job "
        f"script. Name a site with scheduler {names}."
    )

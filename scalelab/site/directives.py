"""Site + allocation -> the lines of a job script; nothing is submitted here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.site.profile import DeviceType, Scheduler

if TYPE_CHECKING:
    from scalelab.site.profile import Site

MAX_PBS_NAME = 236


def directives(
    site: Site,
    allocation: Allocation,
    *,
    job_name: str,
    walltime_s: float | None = None,
) -> list[str]:
    r"""Return the ``#SBATCH`` or ``#PBS`` lines that ask for an allocation.

    Parameters
    ----------
    site
        A site with scheduler slurm or pbs.
    allocation
        Devices and nodes. SLURM cannot ask for different numbers per node: an uneven
        allocation asks for the largest on every node.
    job_name
        Name of the job.
    walltime_s
        Time limit in seconds; default: the site's, else the queue's.

    Raises
    ------
    SpecError
        If the site has no batch system, or its nodes are smaller than the allocation.

    Examples
    --------
    >>> from scalelab.site.profile import Site
    >>> site = Site(scheduler="slurm", device_type="cuda", gpus_per_node=4)
    >>> print(*directives(site, Allocation.packed(8, 4), job_name="vit"), sep="\n")
    #SBATCH --job-name=vit
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=4
    """
    if site.scheduler not in _RENDERERS:
        raise SpecError(
            f"site {site.name!r} has scheduler={site.scheduler}, which has no job "
            "script. Name a site with scheduler slurm or pbs."
        )
    largest = max(allocation.devices_per_node)
    if site.gpus_per_node and largest > site.gpus_per_node:
        raise SpecError(
            f"the allocation {allocation} needs {largest} devices on a node, but a "
            f"node of site {site.name!r} has {site.gpus_per_node}. Spread it over more "
            "nodes."
        )
    prefix, render = _RENDERERS[site.scheduler]
    lines = render(site, allocation, job_name, walltime_s or site.walltime)
    return [f"{prefix} {line}" for line in (*lines, *site.directives)]


def job_script(
    site: Site,
    allocation: Allocation,
    commands: Iterable[str],
    *,
    job_name: str,
    walltime_s: float | None = None,
    log: Path | None = None,
) -> str:
    """Return a whole job script: directives, the site's prologue, commands.

    Parameters
    ----------
    site, allocation, job_name, walltime_s
        As in :func:`directives`.
    commands
        Shell lines.
    log
        File for all that a node's job says, which then is never run again by itself;
        default: the scheduler's own choice for both.

    Raises
    ------
    SpecError
        As :func:`directives`.
    """
    head = directives(site, allocation, job_name=job_name, walltime_s=walltime_s)
    if log is not None:
        prefix, _ = _RENDERERS[site.scheduler]
        head += [f"{prefix} {line}" for line in _LOGGED[site.scheduler](log)]
    lines = ["#!/usr/bin/env bash", *head, *site.prologue, *commands]
    return "\n".join(lines) + "\n"


def _slurm(
    site: Site, allocation: Allocation, job_name: str, walltime_s: float | None
) -> list[str]:
    settings = {
        "job-name": shlex.quote(job_name),
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "nodes": allocation.num_nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": site.cores_per_node,
        **_slurm_devices(site, max(allocation.devices_per_node)),
        "mem": _mebibytes(site.memory_per_node, "M"),
        "mem-per-gpu": _mebibytes(site.memory_per_gpu, "M"),
        "time": _clock(walltime_s, days=True),
    }
    lines = [f"--{name}={value}" for name, value in settings.items() if value]
    return [*lines, "--exclusive"] if site.exclusive else lines


def _slurm_devices(site: Site, per_node: int) -> Mapping[str, object]:
    cores = {}
    if site.device_type is DeviceType.CPU and not site.cores_per_node:
        # A device is a core: without cores_per_node the node's share is what is asked.
        cores = {"cpus-per-task": per_node}
    if not site.asks_for_gpus:
        return cores
    model = f"{site.gpu_type}:" if site.gpu_type else ""
    if site.gpu_request == "gres":
        return {**cores, "gres": f"gpu:{model}{per_node}"}
    return {**cores, "gpus-per-node": f"{model}{per_node}"}


def _pbs(
    site: Site, allocation: Allocation, job_name: str, walltime_s: float | None
) -> list[str]:
    chunks = _torque_chunks if site.gpu_request == "torque" else _select_chunks
    place = "scatter:excl" if site.exclusive else "scatter"
    named = {"-N": job_name.replace(" ", "_")[:MAX_PBS_NAME]}
    settings = {**named, "-q": site.queue, "-A": site.account}
    lines = [f"{name} {value}" for name, value in settings.items() if value]
    lines.append(f"-l {chunks(site, allocation)}")
    if site.gpu_request != "torque":
        lines.append(f"-l place={place}")
    if clock := _clock(walltime_s, days=False):
        lines.append(f"-l walltime={clock}")
    # A rerun would start beside the job that replaces it.
    return [*lines, "-r n"]


def _select_chunks(site: Site, allocation: Allocation) -> str:
    chunks = []
    for per_node, count in _by_size(allocation):
        parts = [str(count), f"ncpus={_pbs_cores(site, per_node)}"]
        if site.asks_for_gpus:
            parts.append(f"ngpus={per_node}")
            parts += [f"gpu_model={site.gpu_type}"] if site.gpu_type else []
        # PBS reads whole numbers of kb, mb and gb only.
        memory = _mebibytes(site.memory_per_node, "mb")
        chunks.append(":".join([*parts, f"mem={memory}"] if memory else parts))
    return "select=" + "+".join(chunks)


def _torque_chunks(site: Site, allocation: Allocation) -> str:
    chunks = []
    for per_node, count in _by_size(allocation):
        parts = [str(count), f"ppn={_pbs_cores(site, per_node)}"]
        if site.asks_for_gpus:
            parts.append(f"gpus={per_node}")
        chunks.append(":".join(parts))
    return "nodes=" + "+".join(chunks)


def _pbs_cores(site: Site, per_node: int) -> int:
    return site.cores_per_node or per_node


def _by_size(allocation: Allocation) -> list[tuple[int, int]]:
    """Return (devices per node, nodes of that size), largest first."""
    sizes = allocation.devices_per_node
    return [(size, sizes.count(size)) for size in dict.fromkeys(sizes)]


def _mebibytes(num_bytes: int | None, unit: str) -> str | None:
    return f"{math.ceil(num_bytes / 2**20)}{unit}" if num_bytes else None


def _clock(seconds: float | None, *, days: bool) -> str | None:
    """Return ``HH:MM:SS``, or SLURM's ``D-HH:MM:SS``."""
    if not seconds:
        return None
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24) if days else (0, hours)
    return f"{f'{day}-' if day else ''}{hour:02d}:{minute:02d}:{second:02d}"


# A job that ran again by itself would be there beside the one that replaces it.
_LOGGED: Mapping[Scheduler, Callable[[Path], tuple[str, ...]]] = {
    Scheduler.SLURM: lambda log: ("--no-requeue", f"--output={shlex.quote(str(log))}"),
    Scheduler.PBS: lambda log: ("-j oe", f"-o {log}"),
}
_Renderer = Callable[["Site", Allocation, str, float | None], list[str]]
_RENDERERS: Mapping[Scheduler, tuple[str, _Renderer]] = {
    Scheduler.SLURM: ("#SBATCH", _slurm),
    Scheduler.PBS: ("#PBS", _pbs),
}

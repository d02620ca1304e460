"""What a site profile must not say, found before anything is submitted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scalelab.errors import SpecError

if TYPE_CHECKING:
    from scalelab.site.profile import Site

_BATCH = ("slurm", "pbs")
_REMOTE = (*_BATCH, "allocation")
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "partition": ("slurm",),
    "qos": ("slurm",),
    "constraint": ("slurm",),
    "memory_per_gpu": ("slurm",),
    "queue": ("pbs",),
    **dict.fromkeys(
        (
            "account",
            "walltime",
            "memory_per_node",
            "gpu_request",
            "gpu_type",
            "request_gpus",
            "directives",
            "provision",
            "max_jobs",
            "submit_interval",
            "poll_interval",
            "max_idle",
            "driver_job",
        ),
        _BATCH,
    ),
    **dict.fromkeys(
        ("cores_per_node", "interface", "driver_interface", "start_timeout"), _REMOTE
    ),
}
_GPU_REQUESTS = {"slurm": ("gres", "gpus_per_node"), "pbs": ("select", "torque")}
# What scalelab.site.directives writes itself; said twice, one of them loses.
_RENDERED = {
    "slurm": re.compile(
        r"-[NntpAJCqoea]\b|--(nodes|ntasks|ntasks-per-node|time|partition|account"
        r"|job-name|qos|constraint|gres=gpu|gpus|gpus-per-node|gpus-per-task|mem"
        r"|mem-per-gpu|cpus-per-task|exclusive|output|error|array|requeue|no-requeue)\b"
        r"(?!-)"
    ),
    "pbs": re.compile(
        r"-[qANroejJ]\b|-l\s*(select|nodes|walltime|place|ngpus|ncpus|mem)\b"
    ),
}
_EXCLUDE_EACH_OTHER = (
    # SLURM takes one of --mem, --mem-per-cpu and --mem-per-gpu.
    ("memory_per_node", re.compile(r"--mem-per-cpu\b")),
    ("memory_per_gpu", re.compile(r"--mem-per-cpu\b")),
)


def refuse_conflicts(site: Site) -> None:
    """Refuse settings that contradict each other or the scheduler.

    Raises
    ------
    SpecError
        Naming the first such setting, its node group, and what to do.
    """
    _refuse_foreign_settings(site)
    if not site.node_groups:
        _refuse_on_like_nodes(site)
        return
    if site.scheduler not in _BATCH:
        raise SpecError(
            f"node_groups say how unlike nodes are asked for, but with scheduler="
            f"{site.scheduler} none are asked for: they are all there. Remove "
            "node_groups, or change the scheduler to slurm or pbs."
        )
    for name, group in site.groups.items():
        try:
            _refuse_on_like_nodes(group)
        except SpecError as error:
            raise SpecError(f"node_groups.{name}: {error}") from error


def _refuse_on_like_nodes(site: Site) -> None:
    _refuse_foreign_settings(site)
    _refuse_contradictions(site)
    _require_settings(site)
    for line in site.directives:
        _refuse_directive(site, line)


def _refuse_foreign_settings(site: Site) -> None:
    for name, schedulers in _BELONGS_TO.items():
        is_set = name in site.model_fields_set and getattr(site, name)
        if is_set and site.scheduler not in schedulers:
            raise SpecError(
                f"{name} belongs to scheduler {' or '.join(schedulers)}, but this site "
                f"has scheduler={site.scheduler}. Remove it or change the scheduler."
            )
    allowed = _GPU_REQUESTS.get(site.scheduler, ())
    if site.gpu_request and site.gpu_request not in allowed:
        raise SpecError(
            f"gpu_request={site.gpu_request} is not a form of {site.scheduler}. Valid "
            f"there: {', '.join(allowed)}."
        )


def _refuse_contradictions(site: Site) -> None:
    if site.memory_per_node and site.memory_per_gpu:
        raise SpecError(
            "memory_per_node and memory_per_gpu exclude each other. Keep one; a node "
            "group takes the site's away with null."
        )
    if site.price_per_gpu_hour and site.price_per_node_hour:
        raise SpecError(
            "price_per_gpu_hour and price_per_node_hour exclude each other. Keep the "
            "one that is charged by; a node group takes the site's away with null."
        )
    if site.device_type == "cuda" and site.request_gpus is False:
        raise SpecError(
            "request_gpus=false with device_type=cuda asks for nodes without the GPUs "
            "that ranks run on. Remove it, or write device_type: cpu."
        )
    for name in ("gpu_type", "memory_per_gpu"):
        if getattr(site, name) and not site.asks_for_gpus:
            raise SpecError(
                f"{name} says something about GPUs, but with device_type=cpu none are "
                "asked for. Remove it, or add request_gpus: true."
            )


def _require_settings(site: Site) -> None:
    if site.scheduler == "local":
        return
    # The machine that reads the profile is a login node: it says nothing about theirs.
    for name in ("device_type", "gpus_per_node"):
        if name not in site.model_fields_set or getattr(site, name) is None:
            raise SpecError(
                f"scheduler={site.scheduler} needs {name}, which cannot be found "
                "out from here. Add it to the site."
            )


def _refuse_directive(site: Site, line: str) -> None:
    if line.lstrip().startswith("#"):
        raise SpecError(
            f"directives: {line[:60]!r} starts with '#'. Write the part after "
            "#SBATCH or #PBS."
        )
    if "\n" in line:
        raise SpecError(
            f"directives: {line[:60]!r} has several lines. Write one per item."
        )
    if found := _RENDERED[site.scheduler].match(line.strip()):
        raise SpecError(
            f"directives: {found[0]!r} is written by ScaleLab, from the site's "
            "other settings and the trial. Remove it there."
        )
    for setting, pattern in _EXCLUDE_EACH_OTHER:
        if getattr(site, setting) and (found := pattern.match(line.strip())):
            raise SpecError(
                f"directives: {found[0]!r} and {setting} exclude each other. Keep one."
            )

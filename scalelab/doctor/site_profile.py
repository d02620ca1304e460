"""Site profiles: a commented one, written from what a batch system says it has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from scalelab.cluster.batch.queue import survey
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import SpecError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.site.choice import is_path, site_in, sites_directory
from scalelab.site.node_settings import DeviceType

DEFAULT_WALLTIME_S = 4 * 3600
MAX_OTHERS = 12
_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_NOT_PLAIN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def init_site(
    name_or_path: str | None,
    *,
    queue: str | None = None,
    device_type: str | None = None,
    scheduler: str | None = None,
    force: bool = False,
) -> tuple[Path, str]:
    """Survey this cluster, write its profile, and return the path and the nodes."""
    found = survey(None if scheduler is None else BATCH_SYSTEMS[scheduler])
    chosen = found.queue(queue)
    kind = DeviceType(device_type) if device_type else None
    text = profile_text(found, chosen, device_type=kind)
    path = write_profile(text, name_or_path or found.cluster_name, force=force)
    return path, f"{found.noun} {chosen.name}, {'; '.join(map(str, chosen.kinds))}"


def profile_text(
    inventory: Inventory, queue: Queue, *, device_type: DeviceType | None = None
) -> str:
    """Return a commented profile for the nodes of a queue."""
    noun, name, scheduler = inventory.noun, inventory.cluster_name, inventory.scheduler
    nodes = _nodes if len(queue.kinds) == 1 else _unlike_nodes
    has_gpus = bool(queue.kinds[0].gpus)
    kind = device_type or (DeviceType.CUDA if has_gpus else DeviceType.CPU)
    others = [
        other for other in inventory.queues if other is not queue and other.groups
    ]
    first, *further = inventory.accounts or ("",)
    or_others = f"  # or: {', '.join(further)}" if further else ""
    wanted_s = min(queue.max_walltime_s or DEFAULT_WALLTIME_S, DEFAULT_WALLTIME_S)
    limit = f"  # {_limit(queue)}" if _limit(queue) else ""
    lines = [
        f"# {name}, as {scheduler} described itself.",
        "# Check it with: scalelab doctor --site NAME [--job]. All settings:",
        "# docs/clusters.md.",
        *(f"# {noun} {other.name}: {_offer(other)}" for other in others[:MAX_OTHERS]),
        "",
        f"scheduler: {scheduler}",
        f"{noun}: {_word(queue.name)}  # {'; '.join(map(str, queue.groups))}",
        f"account: {_word(first)}{or_others}"
        if first
        else "# account: my-project  # what jobs are charged to",
        f"walltime: {_duration(wanted_s)}{limit}",
        "",
        f"device_type: {kind}  # what a rank runs on: a GPU (cuda) or a core (cpu)",
        *nodes(inventory, queue, kind),
        "",
        "# prologue: [module load cuda]  # shell lines before anything starts",
        "# python: /shared/env/bin/python  # default: the one you sweep with",
        "# interface: ib0  # network interface of the nodes",
        "# provision: one_job  # all nodes in one job, granted together",
        f"# driver_job: {{walltime: 24h, {noun}: NAME}}  # for sweep --detach",
    ]
    return "\n".join(lines) + "\n"


def _offer(queue: Queue) -> str:
    groups = "; ".join(map(str, queue.groups))
    return ", ".join(filter(None, (groups, _limit(queue))))


def _limit(queue: Queue) -> str:
    limit_s = queue.max_walltime_s
    longest = "" if limit_s is None else f"at most {_duration(limit_s)}"
    return ", ".join(filter(None, (longest, "" if queue.is_open else "closed")))


def _nodes(inventory: Inventory, queue: Queue, kind: DeviceType) -> Iterator[str]:
    group = queue.kinds[0]
    are_cores = "  # devices, here cores" if kind is DeviceType.CPU else ""
    yield f"gpus_per_node: {group.gpus or f'{group.cores}{are_cores}'}"

    if group.gpus:
        yield from _gpu_settings(inventory, kind)
    if group.gpus and group.gpu_type:
        types = {group.gpu_type for group in queue.groups if group.gpus}
        yield f"{'' if len(types) > 1 else '# '}gpu_type: {_word(group.gpu_type)}"

    yield from _of_one_node(group)
    yield f"# nodes: {group.num_nodes}  # at most; default: those of the largest trial"
    if len(queue.groups) > 1:
        yield "# Nodes are not all alike here: add a constraint, or directives."


def _unlike_nodes(
    inventory: Inventory, queue: Queue, kind: DeviceType
) -> Iterator[str]:
    yield from _gpu_settings(inventory, kind)
    names = {
        re.sub(r"[^A-Za-z0-9]+", "-", str(kind.gpu_type)).strip("-")[:32]: kind
        for kind in queue.kinds
    }
    yield f"# Experiments choose, node_group: [{', '.join(names)}]; else the first."
    yield "node_groups:"

    for name, node_kind in names.items():
        yield from (
            f"  {_word(name)}:  # {node_kind}",
            f"    gpu_type: {_word(str(node_kind.gpu_type))}",
            f"    gpus_per_node: {node_kind.gpus}",
            *(f"    {line}" for line in _of_one_node(node_kind)),
            f"    # nodes: {node_kind.num_nodes}  # at most",
        )


def _gpu_settings(inventory: Inventory, kind: DeviceType) -> Iterator[str]:
    if kind is DeviceType.CPU:
        yield "request_gpus: true  # ranks on cores hold the GPUs' places"
    yield from (f"{key}: {value}" for key, value in inventory.gpu_settings.items())


def _of_one_node(group: NodeGroup) -> Iterator[str]:
    yield f"cores_per_node: {group.cores}"
    if group.memory_bytes is not None:
        yield f"memory_per_node: {group.memory_bytes // 2**20}MiB"


def _word(text: str) -> str:
    """Return a name as a YAML scalar that is read back as text.

    >>> _word("gpu"), _word("no"), _word("2080ti")
    ('gpu', '"no"', '"2080ti"')
    """
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN
    return text if is_plain else json.dumps(text)


def _duration(seconds: float) -> str:
    """Return a duration in the notation of site profiles.

    >>> _duration(14400), _duration(5400), _duration(90)
    ('4h', '90min', '90s')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def write_profile(text: str, name_or_path: str, *, force: bool = False) -> Path:
    """Write a site profile and return its path."""
    path = (
        Path(name_or_path).expanduser()
        if is_path(name_or_path)
        else sites_directory() / f"{name_or_path}.yaml"
    )
    site_in(text, path)
    if path.exists() and not force:
        raise SpecError(
            f"{path} exists. Give another name, or replace it with --force.",
            code="file_exists",
        )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}. Choose another place.",
            code="unwritable",
        ) from error

    return path

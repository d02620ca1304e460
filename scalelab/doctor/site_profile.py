"""Site profiles: a commented one, written from what a batch system says it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalelab.cluster.batch.queue import survey
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import SpecError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.site.choice import is_path, site_in, sites_directory
from scalelab.site.profile import DeviceType

DEFAULT_WALLTIME_S = 4 * 3600
MAX_OTHERS = 12
_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_NOT_PLAIN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenProfile:
    """A site profile that was written: its path and its nodes."""

    path: Path
    noun: str
    queue: str
    nodes: str


def init_site(
    name_or_path: str | None,
    *,
    queue: str | None = None,
    device_type: str | None = None,
    scheduler: str | None = None,
    force: bool = False,
) -> WrittenProfile:
    """Survey this cluster and write a profile of it."""
    found = survey(None if scheduler is None else BATCH_SYSTEMS[scheduler])
    chosen = found.queue(queue)
    kind = None if device_type is None else DeviceType(device_type)
    text = profile_text(found, chosen, device_type=kind)
    return WrittenProfile(
        path=write_profile(text, name_or_path or found.cluster_name, force=force),
        noun=found.noun,
        queue=chosen.name,
        nodes="; ".join(map(str, chosen.kinds)),
    )


def profile_text(
    inventory: Inventory, queue: Queue, *, device_type: DeviceType | None = None
) -> str:
    """Return a commented profile for the nodes of a queue."""
    group = queue.kinds[0]
    nodes = _nodes if len(queue.kinds) == 1 else _unlike_nodes
    kind = device_type or (DeviceType.CUDA if group.gpus else DeviceType.CPU)
    lines = [
        *_head(inventory, queue),
        "",
        *_where(inventory, queue),
        "",
        *nodes(inventory, queue, group, kind),
        "",
        *_further(inventory),
    ]
    return "\n".join(lines) + "\n"


def _head(inventory: Inventory, queue: Queue) -> Iterator[str]:
    yield f"# {inventory.cluster_name}, as {inventory.scheduler} described itself."
    yield "# Check it with: scalelab doctor --site NAME [--job]. All settings:"
    yield "# docs/clusters.md."
    others = [each for each in inventory.queues if each is not queue and each.groups]
    for other in others[:MAX_OTHERS]:
        groups = "; ".join(map(str, other.groups))
        yield f"# {inventory.noun} {other.name}: {groups}{_limit(other)}"


def _limit(queue: Queue) -> str:
    closed = "" if queue.is_open else ", closed"
    if queue.max_walltime_s is None:
        return closed
    return f", at most {_duration(queue.max_walltime_s)}{closed}"


def _where(inventory: Inventory, queue: Queue) -> Iterator[str]:
    groups = "; ".join(map(str, queue.groups))
    yield f"scheduler: {inventory.scheduler}"
    yield f"{inventory.noun}: {_word(queue.name)}  # {groups}"
    first, *others = inventory.accounts or ("",)
    if not first:
        yield "# account: my-project  # what jobs are charged to"
    elif others:
        yield f"account: {_word(first)}  # or: {', '.join(others)}"
    else:
        yield f"account: {_word(first)}"
    wanted_s = min(queue.max_walltime_s or DEFAULT_WALLTIME_S, DEFAULT_WALLTIME_S)
    limit = _limit(queue).removeprefix(", ")
    yield f"walltime: {_duration(wanted_s)}{f'  # {limit}' if limit else ''}"


def _nodes(
    inventory: Inventory, queue: Queue, group: NodeGroup, kind: DeviceType
) -> Iterator[str]:
    yield f"device_type: {kind}  # what a rank runs on: a GPU (cuda) or a core (cpu)"
    if kind is DeviceType.CPU and not group.gpus:
        yield f"gpus_per_node: {group.cores}  # devices, here cores"
    else:
        yield f"gpus_per_node: {group.gpus or group.cores}"
    if kind is DeviceType.CPU and group.gpus:
        yield "request_gpus: true  # ranks on cores hold the GPUs' places"
    if group.gpus:
        yield from _gpu_settings(inventory)
    if group.gpus and group.gpu_type:
        types = {each.gpu_type for each in queue.groups if each.gpus}
        needed = "" if len(types) > 1 else "# "
        yield f"{needed}gpu_type: {_word(group.gpu_type)}"
    yield f"cores_per_node: {group.cores}"
    if group.memory_bytes is not None:
        yield f"memory_per_node: {group.memory_bytes // 2**20}MiB"
    yield f"# nodes: {group.num_nodes}  # at most; default: those of the largest trial"
    if len(queue.groups) > 1:
        yield "# Nodes are not all alike here: add a constraint, or directives."


def _unlike_nodes(
    inventory: Inventory, queue: Queue, group: NodeGroup, kind: DeviceType
) -> Iterator[str]:
    yield f"device_type: {kind}  # what a rank runs on: a GPU (cuda) or a core (cpu)"
    if kind is DeviceType.CPU:
        yield "request_gpus: true  # ranks on cores hold the GPUs' places"
    yield from _gpu_settings(inventory)
    names = {_group_name(each): each for each in queue.kinds}
    yield f"# Experiments choose, node_group: [{', '.join(names)}]; else the first."
    yield "node_groups:"
    for name, each in names.items():
        yield f"  {_word(name)}:  # {each}"
        yield f"    gpu_type: {_word(str(each.gpu_type))}"
        yield f"    gpus_per_node: {each.gpus}"
        yield f"    cores_per_node: {each.cores}"
        if each.memory_bytes is not None:
            yield f"    memory_per_node: {each.memory_bytes // 2**20}MiB"
        yield f"    # nodes: {each.num_nodes}  # at most"


def _gpu_settings(inventory: Inventory) -> Iterator[str]:
    for key, value in inventory.gpu_settings.items():
        yield f"{key}: {value}"


def _group_name(group: NodeGroup) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", str(group.gpu_type)).strip("-")[:32]


def _further(inventory: Inventory) -> Iterator[str]:
    yield "# prologue: [module load cuda]  # shell lines before anything starts"
    yield "# python: /shared/env/bin/python  # default: the one you sweep with"
    yield "# interface: ib0  # network interface of the nodes"
    yield "# provision: one_job  # all nodes in one job, granted together"
    noun = inventory.noun
    yield f"# driver_job: {{walltime: 24h, {noun}: NAME}}  # for sweep --detach"


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
    directory = sites_directory()
    path = (
        Path(name_or_path).expanduser()
        if is_path(name_or_path)
        else directory / f"{name_or_path}.yaml"
    )
    site_in(text, path)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(
            f"{path} exists. Give another name, or replace it with --force."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _unwritable(path: Path, error: OSError) -> SpecError:
    return SpecError(
        f"{path} cannot be written: {error.strerror}. Choose another place."
    )

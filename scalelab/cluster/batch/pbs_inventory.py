"""The queues, nodes and reservations that PBS says it has."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scalelab.cluster.batch.programs import answered, said_by
from scalelab.cluster.batch.queue import seconds
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import ClusterError
from scalelab.inputs.quantities import parse_bytes

Values = Mapping[str, Any]
Hosts = Mapping[str, Sequence[Values]]

# The queue of an advance, a standing or a maintenance reservation.
RESERVATION = re.compile(r"[RSM]\d+")
_LINE = re.compile(r"^(\S+) = (.*)$", re.MULTILINE)
# States of a vnode that takes no jobs, of which it may have several.
_AWAY = re.compile(r"offline|down|unknown|unresolvable|stale|maintenance")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A reservation of nodes, which has a queue of its own.

    Parameters
    ----------
    end_s
        When it ends, in seconds since 1970; None: not said.
    duration_s
        How long it is; None: not said.
    chunks
        What it holds of vnodes: resources by name, ``vnode`` among them.
    """

    end_s: float | None
    duration_s: float | None
    chunks: tuple[Mapping[str, str], ...]

    @classmethod
    def read(cls, text: str) -> Reservation:
        """Read what ``pbs_rstat -f`` says of one reservation."""
        said = dict(_LINE.findall(text))
        duration = said.get("reserve_duration", "")
        return cls(
            end_s=moment(said.get("reserve_end", "")),
            duration_s=float(duration) if duration.isdecimal() else None,
            chunks=tuple(
                {"vnode": name, **dict(part.split("=", 1) for part in parts)}
                for name, *parts in (
                    vnode.split(":")
                    for vnode in re.split(r"[()+]+", said.get("resv_nodes", ""))
                    if vnode
                )
            ),
        )

    def hosts(self, cluster: Hosts) -> Hosts:
        """Return the part of each host that it holds, as if that were all of it."""
        held = {
            host: [
                {**vnode, "resources_available": {**_model(vnode), **chunk}}
                for vnode in vnodes
                for chunk in self.chunks
                if chunk["vnode"] == vnode["name"]
            ]
            for host, vnodes in cluster.items()
        }
        return {host: parts for host, parts in held.items() if parts}


def inventory() -> Inventory:
    """Return what ``pbsnodes``, ``qstat`` and ``pbs_rstat`` list."""
    server = _json(["qstat", "-B", "-f", "-F", "json"])
    (name, settings), *_ = server.get("Server", {}).items() or [("pbs", {})]
    hosts = _hosts(_json(["pbsnodes", "-av", "-F", "json"]).get("nodes", {}))
    queues = _json(["qstat", "-Q", "-f", "-F", "json"]).get("Queue", {})
    default = settings.get("default_queue")
    return Inventory(
        scheduler="pbs",
        cluster_name=str(name).partition(".")[0],
        queues=tuple(
            _queue(queue, queues, hosts, is_default=queue == default)
            for queue in queues
        ),
    )


def moment(text: str) -> float | None:
    """Return PBS's ``Fri Nov 20 03:53:33 2026``, in local time, as seconds since 1970.

    >>> moment("soon") is None
    True
    """
    with suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(text))
    return None


def _json(argv: list[str]) -> dict[str, Any]:
    try:
        return dict(json.loads(said_by(argv)))
    except (ValueError, TypeError) as error:
        raise ClusterError(
            f"{' '.join(argv)} said no JSON ({error}), as Torque does not. Write the "
            "profile by hand: docs/clusters.md."
        ) from error


def _hosts(vnodes: Mapping[str, Values]) -> dict[str, list[Values]]:
    """Return the vnodes by host; a host may have one per GPU."""
    hosts: dict[str, list[Values]] = {}
    for name, vnode in vnodes.items():
        host = str(_has(vnode).get("host", name))
        hosts.setdefault(host, []).append({**vnode, "name": name})
    return hosts


def _has(vnode: Values) -> Values:
    found: Values = vnode.get("resources_available", {})
    return found


def _model(vnode: Values) -> Values:
    has = _has(vnode)
    return {"gpu_model": has["gpu_model"]} if "gpu_model" in has else {}


def _queue(
    name: str, queues: Mapping[str, Values], hosts: Hosts, *, is_default: bool
) -> Queue:
    values = queues[name]
    is_open = values.get("enabled") == values.get("started") == "True"
    limit_s = seconds(str(values.get("resources_max", {}).get("walltime", "")))
    said = ""
    if RESERVATION.fullmatch(name):
        answer = answered(["pbs_rstat", "-f", name])
        said = "" if answer.status else answer.output
    if said:
        held = Reservation.read(said)
        # Before it begins its queue is not started, and jobs wait for that.
        is_open, limit_s = values.get("enabled") == "True", held.duration_s
        mine = held.hosts(hosts)
    else:
        mine = _hosts_of(name, queues, hosts)
    groups = Counter(found for vnodes in mine.values() if (found := _host(vnodes))[0])
    return Queue(
        name=name,
        groups=tuple(
            NodeGroup(
                num_nodes=count,
                cores=cores,
                gpus=gpus,
                memory_bytes=memory,
                gpu_type=model,
            )
            for (cores, gpus, memory, model), count in groups.items()
        ),
        is_default=is_default,
        is_open=is_open,
        max_walltime_s=limit_s,
        num_away=sum(
            any(_AWAY.search(str(vnode.get("state", ""))) for vnode in vnodes)
            for vnodes in mine.values()
            if _host(vnodes)[0]
        ),
        routes_to=tuple(_destinations(values)),
    )


def _destinations(queue: Values) -> list[str]:
    if queue.get("queue_type") != "Route":
        return []
    return [
        each.strip() for each in str(queue.get("route_destinations", "")).split(",")
    ]


def _hosts_of(
    name: str,
    queues: Mapping[str, Values],
    hosts: Hosts,
    seen: frozenset[str] = frozenset(),
) -> Hosts:
    """Return the hosts that the jobs of a queue may get; none where it is not said.

    Those of a routing queue are those of its destinations; of one on another server
    nothing is known.
    """
    values = queues[name]
    if values.get("queue_type") != "Route":
        marks = values.get("default_chunk", {}).get("Qlist")
        has_nodes = values.get("hasnodes") == "True"
        return {
            host: vnodes
            for host, vnodes in hosts.items()
            if all(_may_run(vnode, name, marks, has_nodes) for vnode in vnodes)
        }
    found: dict[str, Sequence[Values]] = {}
    for other in _destinations(values):
        if other not in queues:
            return {}
        if other not in seen:
            found |= _hosts_of(other, queues, hosts, seen | {name})
    return found


def _may_run(vnode: Values, queue: str, marks: Any, has_nodes: bool) -> bool:
    """Tell whether a queue's jobs get a vnode: bound to it, or marked as it is.

    A queue with nodes of its own gets no others.
    """
    bound = vnode.get("queue")
    if bound or has_nodes:
        return bool(bound == queue)
    has = _has(vnode).get("Qlist")
    return marks is None or has is None or str(marks) in str(has).split(",")


def _host(vnodes: Sequence[Values]) -> tuple[int, int, int | None, str | None]:
    has = [_has(vnode) for vnode in vnodes]
    memory = sum(
        parse_bytes(_binary(str(each["mem"]))) for each in has if "mem" in each
    )
    models = {str(each["gpu_model"]) for each in has if "gpu_model" in each}
    return (
        sum(int(each.get("ncpus", 0)) for each in has),
        sum(int(each.get("ngpus", 0)) for each in has),
        memory or None,
        models.pop() if len(models) == 1 else None,
    )


def _binary(size: str) -> str:
    """Return PBS's ``1024kb``, which are powers of two, as others write it.

    >>> _binary("527672488kb"), _binary("16gb")
    ('527672488kib', '16gib')
    """
    number = size.rstrip("kmgtbKMGTB")
    unit = size[len(number) :].lower()
    return f"{number}{unit[0]}ib" if len(unit) == 2 else f"{number}b"

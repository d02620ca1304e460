"""What PBS has, as ``pbsnodes`` and ``qstat`` say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from scalelab.cluster.batch.queue import seconds
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue, said_by
from scalelab.errors import ClusterError
from scalelab.inputs.quantities import parse_bytes
from scalelab.site.profile import Scheduler

Values = Mapping[str, Any]


def survey_pbs() -> Inventory:
    """Ask PBS what it has.

    Raises
    ------
    ClusterError
        If it does not answer.
    """
    server = _json(["qstat", "-B", "-f", "-F", "json"])
    (name, settings), *_ = server.get("Server", {}).items() or [("pbs", {})]
    hosts = _hosts(_json(["pbsnodes", "-av", "-F", "json"]).get("nodes", {}))
    queues = _json(["qstat", "-Q", "-f", "-F", "json"]).get("Queue", {})
    default = settings.get("default_queue")
    return Inventory(
        scheduler=Scheduler.PBS,
        cluster_name=str(name).partition(".")[0],
        queues=tuple(
            _queue(queue, values, hosts, is_default=queue == default)
            for queue, values in queues.items()
        ),
    )


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
        has = vnode.get("resources_available", {})
        hosts.setdefault(str(has.get("host", name)), []).append(vnode)
    return hosts


def _queue(
    name: str, values: Values, hosts: Mapping[str, list[Values]], *, is_default: bool
) -> Queue:
    routes = values.get("queue_type") == "Route"
    marks = values.get("default_chunk", {}).get("Qlist")
    groups = Counter(
        _host(vnodes)
        for vnodes in hosts.values()
        if all(_may_run(vnode, name, marks) for vnode in vnodes)
    )
    limit = values.get("resources_max", {}).get("walltime", "")
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
            if cores
        ),
        is_default=is_default,
        # A routing queue has no nodes; where its jobs go is not said.
        is_open=values.get("enabled") == values.get("started") == "True" and not routes,
        max_walltime_s=seconds(str(limit)),
    )


def _may_run(vnode: Values, queue: str, marks: Any) -> bool:
    """Tell whether a queue's jobs get a vnode: bound to it, or marked as it is."""
    if bound := vnode.get("queue"):
        return bool(bound == queue)
    has = vnode.get("resources_available", {}).get("Qlist")
    return marks is None or has is None or str(marks) in str(has).split(",")


def _host(vnodes: list[Values]) -> tuple[int, int, int | None, str | None]:
    has = [vnode.get("resources_available", {}) for vnode in vnodes]
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

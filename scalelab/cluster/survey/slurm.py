"""What SLURM has, as ``sinfo``, ``scontrol`` and ``sacctmgr`` say."""

from __future__ import annotations

import getpass
import re

from scalelab.cluster.batch.queue import seconds
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue, said_by
from scalelab.errors import ClusterError
from scalelab.site.profile import Scheduler

# Partition (the default with an asterisk), availability, limit, nodes, CPUs, MB, GPUs.
_FORMAT = "%P|%a|%l|%D|%c|%m|%G"
# gpu:4, gpu:a100:4, gpu:a100:4(S:0-1); a MIG slice's type has dots.
_GPUS = re.compile(r"gpu(?::(?P<type>[^:,(]+))?:(?P<count>\d+)(?:\([^)]*\))?$")
_BETWEEN_ENTRIES = re.compile(r",(?![^(]*\))")


def survey_slurm() -> Inventory:
    """Ask SLURM what it has.

    Raises
    ------
    ClusterError
        If it does not answer.
    """
    lines = said_by(["sinfo", "--noheader", "--exact", "--all", f"--format={_FORMAT}"])
    return Inventory(
        scheduler=Scheduler.SLURM,
        cluster_name=_cluster_name(said_by(["scontrol", "show", "config"])),
        queues=tuple(_partitions(lines)),
        accounts=tuple(_accounts()),
    )


def _partitions(lines: str) -> list[Queue]:
    rows: dict[str, list[list[str]]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, *row = line.split("|")
        rows.setdefault(name, []).append(row)
    return [
        Queue(
            name=name.removesuffix("*"),
            groups=tuple(_group(*each[2:]) for each in found if int(each[2])),
            is_default=name.endswith("*"),
            is_open=found[0][0] == "up",
            max_walltime_s=seconds(found[0][1]),
        )
        for name, found in rows.items()
    ]


def _group(num_nodes: str, cores: str, megabytes: str, gres: str) -> NodeGroup:
    gpus = [
        found
        for entry in _BETWEEN_ENTRIES.split(gres)
        if (found := _GPUS.match(entry.strip()))
    ]
    types = {found["type"] for found in gpus}
    return NodeGroup(
        num_nodes=int(num_nodes),
        # "32+": at least so many.
        cores=int(cores.rstrip("+")),
        memory_bytes=int(megabytes.rstrip("+")) * 2**20 or None,
        gpus=sum(int(found["count"]) for found in gpus),
        gpu_type=types.pop() if len(types) == 1 else None,
    )


def _cluster_name(config: str) -> str:
    found = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    return found[1] if found else "slurm"


def _accounts() -> list[str]:
    """Return the user's accounts; none where SLURM keeps no accounts."""
    query = ["sacctmgr", "--noheader", "--parsable2", "show"]
    user = getpass.getuser()
    try:
        default = said_by([*query, "user", user, "format=DefaultAccount"])
        known = said_by([*query, "assoc", f"user={user}", "format=Account"])
    except ClusterError:
        return []
    return list(dict.fromkeys(f"{default}\n{known}".split()))

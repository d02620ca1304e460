"""Shell lines that start the processes of a recommended job, on one node or many."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from scalelab.kinds.launchers.row import RecommendedJob

MEET: Mapping[str, str] = {
    "master_addr": "$MASTER_ADDR",
    "master_port": "$MASTER_PORT",
    "rendezvous": "$MASTER_ADDR:$MASTER_PORT",
    "coordinator": "$MASTER_ADDR:$MASTER_PORT",
}
"""Shell expressions for the placeholders of where processes meet."""
ALONE: Mapping[str, str] = {
    **MEET,
    "rank": "0",
    "local_rank": "0",
    "node_rank": "0",
    "num_processes": "1",
}
"""Shell expressions for the placeholders of a job's only process."""
_OF_NODE: Mapping[str, str] = {
    **ALONE,
    "rank": "$node_rank",
    "node_rank": "$node_rank",
    "num_processes": "$num_processes",
}
OF_DEVICE: Mapping[str, str] = {
    **_OF_NODE,
    "rank": "$rank",
    "local_rank": "$local_rank",
}
"""Shell expressions for the placeholders of one process among many."""
# A name may have its domain or not.
_FIND_NODE = (
    "node_rank=0",
    'for host in "$@"; do',
    '  [ "${host%%.*}" = "$(hostname -s)" ] && break',
    "  node_rank=$((node_rank + 1))",
    "done",
)


def start_per_node(job: RecommendedJob, variables: Mapping[str, str]) -> list[str]:
    """Return the lines that start a process on every node.

    Parameters
    ----------
    job
        The recommended job.
    variables
        Shell words for environment variables of a process. They, and placeholders in
        the command, may use ``$node_rank``, ``$num_processes``, ``$MASTER_ADDR``,
        ``$MASTER_PORT`` and, for the names of all nodes, ``"$@"``.
    """
    start = f"exec env {_assigned(variables)}{job.line(_OF_NODE)}"
    return on_every_node(job, job.num_nodes, [start])


def start_per_device(
    job: RecommendedJob, variables: Mapping[str, str], *, own_device: bool = False
) -> list[str]:
    """Return the lines that start a process for each device of every node.

    One that fails ends the others of its node.

    Parameters
    ----------
    job
        The recommended job.
    variables
        As for :func:`start_per_node`; further, ``$rank`` and ``$local_rank``.
    own_device
        Each process sees no CUDA device but its own.
    """
    count = job.devices_per_node
    known = dict(variables)
    if own_device:
        known["CUDA_VISIBLE_DEVICES"] = "$local_rank"
    return on_every_node(
        job,
        job.num_nodes * count,
        [
            f"for ((local_rank = 0; local_rank < {count}; local_rank++)); do",
            f"  rank=$((node_rank * {count} + local_rank))",
            f"  env {_assigned(known)}{job.line(OF_DEVICE)} &",
            "done",
            f"for ((ended = 0; ended < {count}; ended++)); do",
            "  wait -n || { status=$?; kill $(jobs -p); exit $status; }",
            "done",
        ],
    )


def _assigned(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={value} " for name, value in variables.items())


def on_every_node(
    job: RecommendedJob, num_processes: int, lines: Sequence[str]
) -> list[str]:
    """Return the lines of a job's script that run shell lines once on every node.

    Parameters
    ----------
    job
        The recommended job.
    num_processes
        Processes that the lines start on all nodes together.
    lines
        They find ``$node_rank``, ``$num_processes``, ``$MASTER_ADDR``,
        ``$MASTER_PORT`` and, as ``"$@"``, the names of all nodes.
    """
    total = f"num_processes={num_processes}"
    if job.num_nodes == 1:
        meet = f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={job.port}"
        return [meet, "set -- 127.0.0.1", f"node_rank=0 {total}", *lines]
    meet = "export MASTER_PORT=$1 MASTER_ADDR=$2; shift"
    script = shlex.quote("\n".join([meet, *_FIND_NODE, total, *lines]))
    start = f'{job.on_each_node} bash -c {script} start "{job.port}" {job.hosts}'
    return start.split("\n")

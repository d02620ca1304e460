"""Launcher ``tf_config``: the servers of a TensorFlow cluster, told by ``TF_CONFIG``.

The format is that of https://www.tensorflow.org/guide/distributed_training: the address
of every task by its role, and the role and index of the task itself. Without
``parameter_servers`` all processes are workers, the first of which reports. With them a
chief comes first, which gives out the work and reports, and then the servers; neither
holds a device.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import partial

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.problems import shown
from scalelab.kinds.launchers.grain import per_of
from scalelab.kinds.launchers.job_script import OF_DEVICE, on_every_node
from scalelab.kinds.launchers.row import (
    Devices,
    LaunchedProcess,
    Launcher,
    Processes,
    RecommendedJob,
    per_device,
    per_node,
    with_port,
)

_MOST_SERVERS = 64


def _environment(process: LaunchedProcess, num_servers: int = 0) -> dict[str, str]:
    tasks = [
        with_port(host, port)
        for host, ports in zip(process.hosts, process.ports, strict=True)
        for port in ports
    ]
    cluster = {"worker": tasks}
    if num_servers:
        chief, *others = tasks
        cluster = {
            "chief": [chief],
            "ps": others[:num_servers],
            "worker": others[num_servers:],
        }
    return {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": _role(process.rank, num_servers)}
        ),
        # The ports of tasks are held for them, and gRPC must be told that it may share.
        "TF_GRPC_REUSE_PORT": "true",
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
        # TensorFlow takes the memory of every device that it sees.
        "CUDA_VISIBLE_DEVICES": ",".join(process.device_ids),
    }


def _role(rank: int, num_servers: int) -> dict[str, object]:
    if not num_servers:
        return {"type": "worker", "index": rank}
    if rank == 0:
        return {"type": "chief", "index": 0}
    if rank <= num_servers:
        return {"type": "ps", "index": rank - 1}
    return {"type": "worker", "index": rank - 1 - num_servers}


def _processes(
    held: Processes, num_servers: int, device_ids: Devices, node_rank: int
) -> tuple[Devices, ...]:
    """Return the devices of processes; chief and servers come first, without any."""
    extra = 1 + num_servers if num_servers and node_rank == 0 else 0
    return ((),) * extra + held(device_ids, node_rank)


# Starts the tasks of one node. The first one reports: where there are servers, which
# never end by themselves, all is over when the chief ends.
_START = """
import json, os, subprocess, sys
workers, servers, node, port = map(int, sys.argv[1:5])
command, *hosts = sys.argv[5:]
head = 1 + servers if servers else 0
tasks = [(host, i) for n, host in enumerate(hosts)
         for i in range(workers + head * (n == 0))]
places = [f"{host}:{port + 1 + i}" for host, i in tasks]
cluster = {"worker": places[head:]}
roles = [("worker", i) for i in range(len(places) - head)]
if servers:
    cluster |= {"chief": places[:1], "ps": places[1:head]}
    roles = [("chief", 0), *(("ps", i) for i in range(servers)), *roles]
started = []
for rank, (host, local_rank) in enumerate(tasks):
    if host != hosts[node]:
        continue
    role, index = roles[rank]
    device = local_rank - head * (node == 0)
    held = range(int(os.environ["DEVICES"])) if workers == 1 else [device]
    env = {"rank": str(rank), "local_rank": str(local_rank)}
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, held)) if role == "worker" else ""
    task = {"type": role, "index": index}
    env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    started.append(subprocess.Popen(["bash", "-c", command], env=os.environ | env))
judged = started[:1] if servers and node == 0 else started
status = max(abs(process.wait()) for process in judged)
for process in started:
    process.kill()
sys.exit(min(status, 255))
"""


def _job(job: RecommendedJob, per: str, num_servers: int) -> list[str]:
    workers = job.devices_per_node if per == "device" else 1
    command = shlex.quote(f"exec {job.line(OF_DEVICE)}")
    program = f"python3 -c {shlex.quote(_START)} {workers} {num_servers}"
    start = f'{program} "$node_rank" "$MASTER_PORT" {command} "$@"'
    total = job.num_nodes * workers + (1 + num_servers if num_servers else 0)
    given = f"export num_processes DEVICES={job.devices_per_node} node_rank"
    return on_every_node(job, total, [given, start])


def _row(per: str, num_servers: int) -> Launcher:
    """Return the row for processes per device or node, and so many servers."""
    held = per_device if per == "device" else per_node
    return Launcher(
        name="tf_config",
        processes=partial(_processes, held, num_servers),
        environment=partial(_environment, num_servers=num_servers),
        job_lines=partial(_job, per=per, num_servers=num_servers),
        configured=_configured,
        ports_per_process=1,
        holds_ports=True,
        ends_with_rank_0=num_servers > 0,
    )


def _configured(options: Mapping[str, Scalar]) -> Launcher:
    per = per_of("tf_config", options, further=("parameter_servers",))
    count = options.get("parameter_servers", 0)
    if type(count) is not int or not 0 <= count <= _MOST_SERVERS:
        raise SpecError(
            f"launcher=tf_config: parameter_servers={shown(count)} must be a whole "
            f"number from 0 to {_MOST_SERVERS}: processes on the first node that hold "
            "parameters and no device."
        )
    return _row(per, count)


TF_CONFIG = _row("device", 0)

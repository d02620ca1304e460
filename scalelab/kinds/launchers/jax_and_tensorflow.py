"""Launchers for JAX and TensorFlow, which start a process per device or per node."""

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from scalelab.kinds.launchers.launcher import (
    OF_DEVICE,
    Devices,
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    bracketed,
)


class _Framework(Launcher):
    """A launcher that starts a process per device or, if it is asked to, per node."""

    class Options(Launcher.Options):
        per: Literal["device", "node"] = Field(
            default="device",
            description="device starts a process for each device, node one for all "
            "devices of a node.",
        )

    options: Options

    def __init__(self, options: Launcher.Options | None = None) -> None:
        super().__init__(options)
        self.per = self.options.per

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return {
            "MASTER_ADDR": process.master_addr,
            "MASTER_PORT": str(process.master_port),
            # They take the memory of every device that they see.
            "CUDA_VISIBLE_DEVICES": ",".join(process.device_ids),
        }


class _Jax(_Framework):
    """The processes of a JAX program, which meet at its coordinator.

    ``jax.distributed.initialize(coordinator, num_processes, process_id)`` reads the
    address from the environment, and number and identity from nowhere: a program is
    told them by ``{coordinator}``, ``{num_processes}`` and ``{rank}``, or under the
    names below.
    """

    name = "jax"

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return {
            **super().environment(process),
            "JAX_COORDINATOR_ADDRESS": process.rendezvous,
            "JAX_NUM_PROCESSES": str(process.num_processes),
            "JAX_PROCESS_ID": str(process.rank),
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        variables = {
            "JAX_COORDINATOR_ADDRESS": '"$MASTER_ADDR:$MASTER_PORT"',
            "JAX_NUM_PROCESSES": "$num_processes",
        }
        if self.per == "node":
            return job.start_per_node({**variables, "JAX_PROCESS_ID": "$node_rank"})

        own_variables = {
            "JAX_PROCESS_ID": "$rank",
            "CUDA_VISIBLE_DEVICES": "$local_rank",
        }
        return job.start_per_device({**variables, **own_variables})


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


class _TfConfig(_Framework):
    """The servers of a TensorFlow cluster, told by ``TF_CONFIG``.

    The format is that of https://www.tensorflow.org/guide/distributed_training: the
    address of every task by its role, and the role and index of the task itself.
    Without ``parameter_servers`` all processes are workers, the first of which reports.
    With them a chief comes first, which gives out the work and reports, and then the
    servers; neither holds a device.
    """

    name = "tf_config"
    ports_per_process = 1
    holds_ports = True

    class Options(_Framework.Options):
        parameter_servers: Annotated[int, Field(strict=True, ge=0, le=64)] = Field(
            default=0,
            description="Processes on the first node that hold parameters and no "
            "device.",
        )

    options: Options

    def __init__(self, options: Launcher.Options | None = None) -> None:
        super().__init__(options)
        self._num_servers = self.options.parameter_servers
        self._num_first = self._num_servers + 1 if self._num_servers else 0
        self.ends_with_rank_0 = self._num_servers > 0

    def processes(self, device_ids: Devices, node_rank: int) -> tuple[Devices, ...]:
        first = ((),) * self._num_first if node_rank == 0 else ()
        return (*first, *super().processes(device_ids, node_rank))

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        tasks = [
            f"{bracketed(host)}:{port}"
            for host, ports in zip(process.hosts, process.ports, strict=True)
            for port in ports
        ]
        cluster = {"worker": tasks[self._num_first :]}
        if self._num_servers:
            head = {"chief": tasks[:1], "ps": tasks[1 : self._num_first]}
            cluster = head | cluster

        role, index = "worker", process.rank - self._num_first
        if index < 0:
            role, index = ("ps", process.rank - 1) if process.rank else ("chief", 0)

        config = {"cluster": cluster, "task": {"type": role, "index": index}}
        return {
            **super().environment(process),
            "TF_CONFIG": json.dumps(config),
            # The ports of tasks are held for them, and gRPC must be told that it may
            # share.
            "TF_GRPC_REUSE_PORT": "true",
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        workers = job.devices_per_node if self.per == "device" else 1
        command = shlex.quote(f"exec {job.line(OF_DEVICE)}")
        program = f"python3 -c {shlex.quote(_START)} {workers} {self._num_servers}"
        start = f'{program} "$node_rank" "$MASTER_PORT" {command} "$@"'
        total = job.num_nodes * workers + self._num_first
        given = f"export num_processes DEVICES={job.devices_per_node} node_rank"
        return job.on_every_node(total, [given, start])


JAX, TF_CONFIG = _Jax(), _TfConfig()

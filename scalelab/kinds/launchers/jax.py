"""Launcher ``jax``: the processes of a JAX program, which meet at its coordinator.

``jax.distributed.initialize(coordinator, num_processes, process_id)`` reads the address
from the environment, and number and identity from nowhere: a program is told them by
``{coordinator}``, ``{num_processes}`` and ``{rank}``, or under the names below.
"""

from __future__ import annotations

from collections.abc import Mapping

from scalelab.inputs.document import Scalar
from scalelab.kinds.launchers.grain import per_of
from scalelab.kinds.launchers.job_script import start_per_device, start_per_node
from scalelab.kinds.launchers.row import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
    per_node,
)


def _environment(process: LaunchedProcess) -> Mapping[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": process.rendezvous,
        "JAX_NUM_PROCESSES": str(process.num_processes),
        "JAX_PROCESS_ID": str(process.rank),
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": str(process.master_port),
        # JAX takes the memory of every device that it sees.
        "CUDA_VISIBLE_DEVICES": ",".join(process.device_ids),
    }


def _variables(process_id: str) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": '"$MASTER_ADDR:$MASTER_PORT"',
        "JAX_NUM_PROCESSES": "$num_processes",
        "JAX_PROCESS_ID": process_id,
    }


def _job_per_device(job: RecommendedJob) -> list[str]:
    return start_per_device(job, _variables("$rank"), own_device=True)


def _job_per_node(job: RecommendedJob) -> list[str]:
    return start_per_node(job, _variables("$node_rank"))


def _configured(options: Mapping[str, Scalar]) -> Launcher:
    return _PER_NODE if per_of("jax", options) == "node" else JAX


JAX = Launcher(
    name="jax",
    processes=per_device,
    environment=_environment,
    job_lines=_job_per_device,
    configured=_configured,
)
_PER_NODE = Launcher(
    name="jax",
    processes=per_node,
    environment=_environment,
    job_lines=_job_per_node,
    configured=_configured,
)

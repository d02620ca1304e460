"""Sites of SLURM: their settings, and the options of ``sbatch`` that ask for nodes."""

import shlex
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.fields import Size, Word
from scalelab.site.batch_site import BatchSite, DriverJob, clock, mebibytes
from scalelab.site.node_settings import BatchNodeSettings, DeviceType, GroupName


class SlurmNodeSettings(BatchNodeSettings):
    """Nodes of SLURM that are alike."""

    partition: Word | None = Field(default=None, description="SLURM partition.")
    qos: Word | None = Field(default=None, description="SLURM quality of service.")
    constraint: Word | None = Field(default=None, description="SLURM node constraint.")
    memory_per_gpu: Size | None = Field(
        default=None, description="SLURM: memory per GPU, instead of memory_per_node."
    )
    gpu_request: Literal["gres", "gpus_per_node"] | None = Field(
        default=None,
        description="Option that asks for GPUs; by default gpus_per_node.",
    )


class SlurmDriverJob(DriverJob):
    """A small job of SLURM that runs the driver."""

    partition: Word | None = Field(
        default=None, description="SLURM partition; by default the site's."
    )


class SlurmSite(BatchSite, SlurmNodeSettings):
    """A cluster whose batch system is SLURM."""

    of_gpu_nodes: ClassVar[tuple[str, ...]] = ("constraint", "memory_per_gpu")

    scheduler: Literal["slurm"] = Field(
        description="slurm: trials run on nodes that SLURM grants."
    )
    node_groups: Mapping[GroupName, SlurmNodeSettings] = Field(
        default={}, description=BatchSite.model_fields["node_groups"].description
    )
    driver_job: SlurmDriverJob | None = Field(
        default=None, description=BatchSite.model_fields["driver_job"].description
    )

    def refuse_conflicts(self) -> None:
        """Refuse also two settings of memory, or memory per GPU without GPUs."""
        if self.memory_per_node and self.memory_per_gpu:
            raise SpecError(
                "memory_per_node and memory_per_gpu exclude each other. Keep one; a "
                "node group takes the site's away with null.",
                code="memory_said_twice",
            )
        super().refuse_conflicts()
        self.refuse_without_gpus("memory_per_gpu")

    def request(
        self, allocation: Allocation, job_name: str, walltime_s: float | None
    ) -> list[str]:
        """Return the options of a job that asks for an allocation.

        SLURM cannot ask for different numbers of devices per node: an uneven allocation
        asks for the largest on every node.
        """
        per_node = max(allocation.devices_per_node)
        cores, gpus = self.cores_per_node, None
        if self.device_type is DeviceType.CPU:
            # A device is a core: without cores_per_node the share of the node is asked.
            cores = cores or per_node
        if self.asks_for_gpus:
            gpus = f"{self.gpu_type}:{per_node}" if self.gpu_type else str(per_node)

        is_gres = self.gpu_request == "gres"
        settings = {
            "job-name": shlex.quote(job_name),
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": allocation.num_nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": cores,
            "gres": f"gpu:{gpus}" if gpus and is_gres else None,
            "gpus-per-node": None if is_gres else gpus,
            "mem": mebibytes(self.memory_per_node, "M"),
            "mem-per-gpu": mebibytes(self.memory_per_gpu, "M"),
            "time": clock(walltime_s, days=True),
        }

        lines = [f"--{name}={value}" for name, value in settings.items() if value]
        return [*lines, "--exclusive"] if self.exclusive else lines

"""Sites of PBS: their settings, and the options of ``qsub`` that ask for nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from scalelab.inputs.allocation import Allocation
from scalelab.inputs.fields import Word
from scalelab.site.batch_site import BatchSite, DriverJob, by_size, clock, mebibytes
from scalelab.site.node_settings import BatchNodeSettings, GroupName

MAX_JOB_NAME = 236


class PbsNodeSettings(BatchNodeSettings):
    """Nodes of PBS that are alike."""

    queue: Word | None = Field(default=None, description="PBS queue.")
    gpu_request: Literal["select", "torque"] | None = Field(
        default=None,
        description="Form of the request for nodes and GPUs; by default select.",
    )


class PbsDriverJob(DriverJob):
    """A small job of PBS that runs the driver."""

    queue: Word | None = Field(
        default=None, description="PBS queue; by default the site's."
    )


class PbsSite(BatchSite, PbsNodeSettings):
    """A cluster whose batch system is PBS Professional, OpenPBS or Torque."""

    scheduler: Literal["pbs"] = Field(
        description="pbs: trials run on nodes that PBS grants."
    )
    node_groups: Mapping[GroupName, PbsNodeSettings] = Field(
        default={}, description=BatchSite.model_fields["node_groups"].description
    )
    driver_job: PbsDriverJob | None = Field(
        default=None, description=BatchSite.model_fields["driver_job"].description
    )

    def request(
        self, allocation: Allocation, job_name: str, walltime_s: float | None
    ) -> list[str]:
        """Return the options of a job that asks for an allocation."""
        named = {"-N": job_name.replace(" ", "_")[:MAX_JOB_NAME]}
        settings = {**named, "-q": self.queue, "-A": self.account}
        lines = [f"{name} {value}" for name, value in settings.items() if value]
        lines += self._nodes(allocation)
        if limit := clock(walltime_s):
            lines.append(f"-l walltime={limit}")
        # A rerun would start beside the job that replaces it.
        return [*lines, "-r n"]

    def _nodes(self, allocation: Allocation) -> list[str]:
        if self.gpu_request == "torque":
            return [f"-l {self._torque_chunks(allocation)}"]
        place = "scatter:excl" if self.exclusive else "scatter"
        return [f"-l {self._select_chunks(allocation)}", f"-l place={place}"]

    def _select_chunks(self, allocation: Allocation) -> str:
        chunks = []
        for per_node, count in by_size(allocation):
            parts = [str(count), f"ncpus={self.cores_per_node or per_node}"]
            if self.asks_for_gpus:
                parts.append(f"ngpus={per_node}")
                parts += [f"gpu_model={self.gpu_type}"] if self.gpu_type else []
            # PBS reads whole numbers of kb, mb and gb only.
            memory = mebibytes(self.memory_per_node, "mb")
            chunks.append(":".join([*parts, f"mem={memory}"] if memory else parts))
        return "select=" + "+".join(chunks)

    def _torque_chunks(self, allocation: Allocation) -> str:
        chunks = []
        for per_node, count in by_size(allocation):
            parts = [str(count), f"ppn={self.cores_per_node or per_node}"]
            if self.asks_for_gpus:
                parts.append(f"gpus={per_node}")
            chunks.append(":".join(parts))
        return "nodes=" + "+".join(chunks)

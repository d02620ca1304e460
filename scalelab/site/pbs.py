"""Sites of PBS: their settings, and the options of ``qsub`` that ask for nodes."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.fields import Word
from scalelab.site.batch_site import BatchSite, DriverJob, clock, mebibytes
from scalelab.site.node_settings import BatchNodeSettings, GroupName

MAX_JOB_NAME = 230
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]")
_CHUNK_RESOURCE = re.compile(r"[A-Za-z]\w*=[^\s:+=]+")
_WRITTEN = {
    "ncpus": "cores_per_node",
    "ngpus": "gpus_per_node",
    "mem": "memory_per_node",
    "gpu_model": "gpu_type",
}


def _chunk_resource(text: str) -> str:
    name, _, value = text.partition("=")
    if not _CHUNK_RESOURCE.fullmatch(text):
        raise SpecError(
            f"{text!r} is no resource of a chunk. Write one NAME=VALUE per item, such "
            "as fast=True.",
            code="not_a_chunk",
        )

    if name in _WRITTEN:
        raise SpecError(
            f"{text!r} is written from {_WRITTEN[name]}. Set that.", code="chunk_of_own"
        )

    if name == "mpiprocs" and value != "1":
        raise SpecError(
            f"{text!r} would start a node's process {value} times. Only mpiprocs=1 "
            "fits: ScaleLab starts the ranks of a node itself.",
            code="chunk_starts_ranks",
        )

    return text


ChunkResource = Annotated[Word, AfterValidator(_chunk_resource)]


class PbsNodeSettings(BatchNodeSettings):
    """Nodes of PBS that are alike."""

    queue: Word | None = Field(default=None, description="PBS queue.")
    gpu_request: Literal["select", "torque"] | None = Field(
        default=None,
        description="Form of the request for nodes and GPUs; by default select.",
    )
    chunk: tuple[ChunkResource, ...] = Field(
        default=(),
        description=(
            "What else each chunk of the request asks for, such as [fast=True, "
            "mpiprocs=1]."
        ),
    )


class PbsDriverJob(DriverJob):
    """A small job of PBS that runs the driver."""

    chunk: tuple[ChunkResource, ...] = Field(
        default=(), description="What else the chunk of its request asks for."
    )
    queue: Word | None = Field(
        default=None, description="PBS queue; by default the site's."
    )


class PbsSite(BatchSite, PbsNodeSettings):
    """A cluster whose batch system is PBS Professional, OpenPBS or Torque."""

    instead_of: ClassVar[Mapping[str, str]] = {
        "-l select": "What else each chunk needs goes into chunk, such as [fast=True]."
    }

    scheduler: Literal["pbs"] = Field(
        description="pbs: trials run on nodes that PBS grants."
    )
    node_groups: Mapping[GroupName, PbsNodeSettings] = Field(
        default={}, description=BatchSite.model_fields["node_groups"].description
    )
    driver_job: PbsDriverJob | None = Field(
        default=None, description=BatchSite.model_fields["driver_job"].description
    )

    def refuse_conflicts(self) -> None:
        """Refuse also resources of chunks in Torque's form of the request."""
        super().refuse_conflicts()
        if self.chunk and self.gpu_request == "torque":
            raise SpecError(
                "chunk adds to the chunks of select, and gpu_request=torque has none. "
                "Remove one of them.",
                code="chunk_without_select",
            )

    def request(
        self, allocation: Allocation, job_name: str, walltime_s: float | None
    ) -> list[str]:
        """Return the options of a job that asks for an allocation."""
        name = _NOT_IN_NAMES.sub("_", job_name)[:MAX_JOB_NAME]
        settings = {"-N": name, "-q": self.queue, "-A": self.account}
        lines = [f"{name} {value}" for name, value in settings.items() if value]
        is_torque = self.gpu_request == "torque"
        sizes = allocation.devices_per_node

        chunks = "+".join(
            self._chunk(per_node, sizes.count(per_node), is_torque)
            for per_node in dict.fromkeys(sizes)
        )
        if is_torque:
            lines.append(f"-l nodes={chunks}")
        else:
            place = "scatter:excl" if self.exclusive else "scatter"
            lines += [f"-l select={chunks}", f"-l place={place}"]

        if limit := clock(walltime_s):
            lines.append(f"-l walltime={limit}")

        # A rerun would start beside the job that replaces it.
        return [*lines, "-r n"]

    def _chunk(self, per_node: int, count: int, is_torque: bool) -> str:
        cores, gpus = ("ppn", "gpus") if is_torque else ("ncpus", "ngpus")
        parts = [str(count), f"{cores}={self.cores_per_node or per_node}"]
        if self.asks_for_gpus:
            parts.append(f"{gpus}={per_node}")

        if not is_torque:
            # PBS reads whole numbers of kb, mb and gb only.
            memory = mebibytes(self.memory_per_node, "mb")
            model = self.gpu_type if self.asks_for_gpus else None
            parts += [f"gpu_model={model}"] if model else []
            parts += [f"mem={memory}"] if memory else []
            parts += self.chunk

        return ":".join(parts)

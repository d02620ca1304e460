"""Sites whose nodes a batch system grants: what all batch systems have in common."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Self, cast

from pydantic import Field

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.fields import Count, Duration, Flag, Section, Size, Text
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem
from scalelab.site.node_settings import BatchNodeSettings, DeviceType, GroupName
from scalelab.site.profile import RemoteSite, Site


class DriverJob(Section):
    """A small batch job, without devices, that runs the driver and renews itself."""

    walltime: Duration = Field(
        description="Time limit, such as 24h; the job is succeeded before it."
    )
    cores: Count = Field(default=1, description="Cores to ask for.")
    memory: Size = Field(
        default=2_000_000_000, description="Memory to ask for, such as 2GB."
    )
    directives: tuple[Text, ...] = Field(
        default=(),
        description=(
            "Further options of the job, one per line, without the #SBATCH or #PBS "
            "before them."
        ),
    )


class BatchSite(RemoteSite, BatchNodeSettings):
    """A cluster whose batch system grants nodes to jobs.

    The class of a batch system adds its ``scheduler``, the settings that only it has,
    the node groups and the driver's job with the same settings, and the request.
    ``of_gpu_nodes`` names further settings that a job without GPUs does not take over,
    ``instead_of`` says what to do instead of writing an option that ScaleLab writes.
    """

    cluster: ClassVar[str] = "scalelab.cluster.batch.nodes:BatchNodes"
    of_gpu_nodes: ClassVar[tuple[str, ...]] = ()
    instead_of: ClassVar[Mapping[str, str]] = {}

    request_gpus: Flag | None = Field(
        default=None,
        description=(
            "Ask for GPUs; by default where device_type is cuda. With cpu, ranks on "
            "cores hold the GPUs' places: for trying a profile out."
        ),
    )
    provision: Literal["pool", "one_job"] = Field(
        default="pool",
        description=(
            "pool: jobs of one node, used as the queue grants them. one_job: all nodes "
            "in one job, granted together."
        ),
    )
    max_jobs: Count | None = Field(
        default=None, description="Jobs that may be queued or run at once."
    )
    submit_interval: Duration | None = Field(
        default=None, description="Least time between two submissions, such as 2s."
    )
    poll_interval: Duration = Field(
        default=10.0, description="How often the queue is asked, such as 10s."
    )
    max_idle: Duration = Field(
        default=600.0,
        description="Time nodes are held that wait for others, such as 10min.",
    )
    node_groups: Mapping[GroupName, BatchNodeSettings] = Field(
        default={},
        description=(
            "Nodes that are not alike, {name: settings}: what a group does not say is "
            "the site's. Experiments choose by node_group."
        ),
    )
    driver_job: DriverJob | None = Field(
        default=None,
        description=(
            "The batch job in which sweep --detach runs, where nodes may submit; by "
            "default it runs as a process of the machine it is started on."
        ),
    )

    @abstractmethod
    def request(
        self, allocation: Allocation, job_name: str, walltime_s: float | None
    ) -> list[str]:
        """Return the options of a job that asks for an allocation."""

    @property
    def batch_system(self) -> BatchSystem:
        """The batch system that is asked for nodes."""
        return BATCH_SYSTEMS[self.scheduler]

    @property
    def queue_name(self) -> str | None:
        """Queue or partition of the jobs; None: the default one."""
        return cast(str | None, getattr(self, self.batch_system.queue_noun))

    @property
    def asks_for_gpus(self) -> bool:
        """Jobs hold GPUs, whatever ranks run on."""
        is_cuda = self.device_type is DeviceType.CUDA
        return is_cuda if self.request_gpus is None else self.request_gpus

    @property
    def groups(self) -> Mapping[str | None, Self]:
        """Each node group by its name, as a site whose nodes are alike."""
        if not self.node_groups:
            return {self._group: self}
        groups: dict[str | None, Self] = {}
        for name, settings in self.node_groups.items():
            values_of_group = {
                key: getattr(settings, key) for key in settings.model_fields_set
            }
            values_of_group |= {"name": f"{self.name}.{name}", "node_groups": {}}
            groups[name] = self.model_copy(update=values_of_group)
            groups[name]._group = name

        return groups

    def for_driver(self, job: DriverJob, after: str | None) -> Self:
        """Return the site as the driver's job sees it: one node, no GPU."""
        system, directives = self.batch_system, job.directives
        if after is not None:
            directives = (*directives, system.after(after))

        # Settings that the job has too are its own.
        shared = type(job).model_fields.keys() & type(self).model_fields.keys()
        return self.model_copy(
            update={
                **dict.fromkeys(self.of_gpu_nodes),
                **{name: getattr(job, name) for name in shared},
                system.queue_noun: getattr(job, system.queue_noun) or self.queue_name,
                "device_type": DeviceType.CPU,
                "request_gpus": False,
                "gpu_type": None,
                "exclusive": False,
                "cores_per_node": job.cores,
                "memory_per_node": job.memory,
                "directives": directives,
            }
        )

    def refuse_conflicts(self) -> None:
        """Refuse also settings that a job script cannot express, or would repeat."""
        super().refuse_conflicts()
        if self.device_type is DeviceType.CUDA and self.request_gpus is False:
            raise SpecError(
                "request_gpus=false with device_type=cuda asks for nodes without the "
                "GPUs that ranks run on. Remove it, or write device_type: cpu.",
                code="gpus_not_requested",
            )
        self.refuse_without_gpus("gpu_type")
        for line in self.directives:
            self._refuse_directive(line)

    def refuse_without_gpus(self, setting: str) -> None:
        """Refuse a setting of GPUs where jobs ask for none."""
        if getattr(self, setting) and not self.asks_for_gpus:
            raise SpecError(
                f"{setting} says something about GPUs, but with device_type=cpu none "
                "are asked for. Remove it, or add request_gpus: true; a node group "
                "takes the site's away with null.",
                code="setting_without_gpus",
            )

    def _refuse_directive(self, line: str) -> None:
        system, directive = self.batch_system, f"directives: {line[:60]!r}"
        if line.lstrip().startswith("#"):
            raise SpecError(
                f"{directive} starts with '#'. Write the part after "
                f"{system.directive}.",
                code="directive_has_sign",
            )

        if "\n" in line:
            raise SpecError(
                f"{directive} has several lines. Write one per item.",
                code="directive_of_several_lines",
            )

        for option in system.options_of(line):
            if found := system.reserved_options.match(option):
                remedy = self.instead_of.get(found[0], "Remove it there.")
                raise SpecError(
                    f"directives: {found[0]!r} is written by ScaleLab, from the site's "
                    f"other settings and the trial. {remedy}",
                    code="directive_of_own",
                )
            for setting, pattern in system.excluding_options:
                found = pattern.match(option)
                if found and getattr(self, setting):
                    raise SpecError(
                        f"directives: {found[0]!r} and {setting} exclude each other. "
                        "Keep one.",
                        code="directive_conflicts",
                    )


def driver_job_of(site: Site) -> DriverJob | None:
    """Return the batch job in which a detached sweep runs; None: in none."""
    return site.driver_job if isinstance(site, BatchSite) else None


def mebibytes(num_bytes: int | None, unit: str) -> str | None:
    """Return an amount of memory as batch systems read it; None: none is asked for.

    >>> mebibytes(64 * 10**9, "M")
    '61036M'
    """
    return f"{math.ceil(num_bytes / 2**20)}{unit}" if num_bytes else None


def clock(seconds: float | None, *, days: bool = False) -> str | None:
    """Return a time limit as ``HH:MM:SS``, or with days as ``D-HH:MM:SS``.

    >>> clock(36 * 3600), clock(36 * 3600, days=True)
    ('36:00:00', '1-12:00:00')
    """
    if not seconds:
        return None
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24) if days else (0, hours)
    return f"{f'{day}-' if day else ''}{hour:02d}:{minute:02d}:{second:02d}"

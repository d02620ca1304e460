"""Sites: the machine or cluster on which trials run, as its profile describes it.

Each scheduler has a class of its own, with the settings that are valid for it. The rows
of ``BATCH_SYSTEMS`` name those of batch systems, and
:func:`~scalelab.site.choice.site_of` finds the class of a profile.
"""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from scalelab.errors import SpecError
from scalelab.inputs.fields import Duration, Word
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.batch_systems import BatchSystem
from scalelab.site.node_settings import (
    DeviceType,
    NodeSettings,
    RemoteNodeSettings,
)


def affinity() -> list[int]:
    """Return the cores this process may run on, sorted."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(affinity())


def cpu_name() -> str:
    """Return the model of this machine's processor, or else its architecture."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.machine()


def num_visible_gpus() -> int:
    """Return the NVIDIA GPUs this process may use, without loading CUDA."""
    present = [p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit()]
    listed = listed_gpus()
    return len(present if listed is None or not present else listed)


def listed_gpus() -> tuple[str, ...] | None:
    """Return the devices of ``CUDA_VISIBLE_DEVICES``; None: it is not set.

    As CUDA reads the list: it ends at the first entry that is no device.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    entries = (entry.strip() for entry in visible.split(","))
    return tuple(takewhile(lambda entry: entry not in ("", "-1"), entries))


LOST_AFTER_S = 300.0
ProfilePath = Annotated[str, Field(strict=True, pattern=r"^[/~].{0,999}$")]


class Site(NodeSettings):
    """The settings that every site has.

    ``cluster`` is the path, ``module:attribute``, of what starts its nodes: called with
    the site, the run's directory, the nodes of the largest trial, and the options of
    :class:`~scalelab.launch.gang_agent.NodeAgent`.
    """

    cluster: ClassVar[str]
    is_this_machine: ClassVar[bool] = False

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$")] = Field(
        default="local", description="Name in messages and records."
    )
    scheduler: str
    device_type: DeviceType = Field(
        default_factory=lambda: (
            DeviceType.CUDA if num_visible_gpus() else DeviceType.CPU
        ),
        description="What a rank runs on: cpu (a core each) or cuda (a GPU each).",
    )
    lost_after: Duration = Field(
        default=LOST_AFTER_S,
        description="Silence after which a node counts as lost; its trials run again.",
    )
    history: ProfilePath | None = Field(
        default=None,
        description="Folder of finished runs that answers learn step times from "
        "[default: ~/.config/scalelab/history].",
    )
    prices: ProfilePath | None = Field(
        default=None,
        description="File with a list of prices, which counts for more than the prices "
        "said here.",
    )
    dashboard: bool = Field(
        default=True,
        description="Serve Dask's dashboard at the loopback interface of the driver's "
        "machine, where every local user can read it.",
    )
    _group: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _has_consistent_nodes(self) -> Self:
        for name, group in self.groups.items():
            try:
                group.refuse_conflicts()
            except SpecError as error:
                if name is None:
                    raise
                raise SpecError(
                    f"node_groups.{name}: {error}", code=error.code
                ) from error
        return self

    def refuse_conflicts(self) -> None:
        """Refuse settings of these nodes that contradict each other."""
        if self.price_per_gpu_hour and self.price_per_node_hour:
            raise SpecError(
                "price_per_gpu_hour and price_per_node_hour exclude each other. Keep "
                "the one that is charged by; a node group takes the site's away with "
                "null.",
                code="price_said_twice",
            )

    @property
    def batch_system(self) -> BatchSystem | None:
        """The batch system that is asked for nodes; None: they are all there."""
        return None

    @property
    def group(self) -> str | None:
        """Name of the node group that this site stands for; None: all its nodes."""
        return self._group

    @property
    def groups(self) -> Mapping[str | None, Self]:
        """Each node group by its name, as a site whose nodes are alike.

        A site without groups is its only one, by the name None.
        """
        return {self._group: self}

    def in_group(self, name: str | None) -> Self:
        """Return the site as it is for the nodes of a group; None: all are alike."""
        groups = self.groups
        if name in groups:
            return groups[name]

        named = [group for group in groups if group is not None]
        if name is None:
            raise SpecError(
                f"site {self.name!r} has node_groups, {', '.join(named)}, "
                "and none of them was measured. Choose a site whose nodes are alike.",
                code="node_groups_not_measured",
            )

        if not named:
            raise SpecError(
                f"node_group={shown(name)}, but site {self.name!r} has no node_groups: "
                "its nodes are alike. Name no group, or add node_groups to the site.",
                code="no_node_groups",
            )

        raise SpecError(
            f"node_group={shown(name)} is no node group of site {self.name!r}. "
            f"{one_of(named, name)}",
            code="unknown_node_group",
        )

    @property
    def num_nodes(self) -> int | None:
        """Nodes a trial may span; None where the site sets no limit."""
        return self.nodes

    @property
    def devices_per_node(self) -> int:
        """Devices, and so ranks, that a node holds."""
        if self.gpus_per_node:
            return self.gpus_per_node
        if self.device_type is DeviceType.CPU:
            return num_cores()
        if num_gpus := num_visible_gpus():
            return num_gpus

        raise SpecError(
            "device_type=cuda, but no GPU is visible here. Write device_type: cpu in "
            "the site, or say gpus_per_node.",
            code="no_gpu_visible",
        )

    @property
    def num_devices(self) -> int | None:
        """Devices in all; None where the site sets no limit."""
        return self.num_nodes and self.num_nodes * self.devices_per_node


class LocalSite(Site):
    """The machine that the sweep is started on, as one node or divided into several."""

    cluster: ClassVar[str] = "scalelab.cluster.local:local_nodes"
    is_this_machine: ClassVar[bool] = True

    scheduler: Literal["local"] = Field(
        default="local", description="local: trials run on this machine."
    )

    @property
    def num_nodes(self) -> int | None:
        """Nodes a trial may span: one, unless the site says more."""
        return self.nodes or 1


class RemoteSite(Site, RemoteNodeSettings):
    """A site whose nodes are other machines, which join this one over the network."""

    device_type: DeviceType = Field(
        description="What a rank runs on: cpu (a core each) or cuda (a GPU each)."
    )
    interface: Word | None = Field(
        default=None,
        description=(
            "Network interface of the nodes for Dask and between ranks, such as ib0; "
            "by default the one that leads to the driver."
        ),
    )
    driver_interface: Word | None = Field(
        default=None,
        description="Network interface at which nodes reach the driver, such as eth0.",
    )
    start_timeout: Duration = Field(
        default=300.0,
        description="Time a node may take to answer once its job runs, such as 5min.",
    )

    def refuse_conflicts(self) -> None:
        """Refuse also nodes whose devices are not declared."""
        super().refuse_conflicts()
        # The machine that reads the profile is a login node: it says nothing of theirs.
        if self.gpus_per_node is None:
            raise SpecError(
                f"scheduler={self.scheduler} needs gpus_per_node, which cannot be "
                "found out from here. Add it to the site.",
                code="devices_unknown",
            )


class AllocationSite(RemoteSite):
    """The nodes of the batch job that the sweep is started in."""

    cluster: ClassVar[str] = "scalelab.cluster.hub:AllocationNodes"

    scheduler: Literal["allocation"] = Field(
        description="allocation: trials run on the nodes of the job that is held."
    )

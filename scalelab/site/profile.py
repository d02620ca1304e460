"""Where trials run: the profile of a machine or a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from scalelab.errors import SpecError
from scalelab.inputs.document import paragraph, parse_document, read_document
from scalelab.inputs.fields import (
    Count,
    Duration,
    Flag,
    Word,
)
from scalelab.inputs.problems import one_of, shown, validated
from scalelab.site.conflicts import refuse_conflicts
from scalelab.site.driver_settings import DriverJob
from scalelab.site.local_devices import num_cores, num_visible_gpus
from scalelab.site.node_settings import GroupName, NodeSettings


class Scheduler(StrEnum):
    """Who hands out the nodes."""

    LOCAL = "local"
    SLURM = "slurm"
    PBS = "pbs"
    ALLOCATION = "allocation"

    @property
    def is_batch_system(self) -> bool:
        """Nodes are asked for with a job script."""
        return self in (Scheduler.SLURM, Scheduler.PBS)


class DeviceType(StrEnum):
    """What a rank runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class Site(NodeSettings):
    """A machine or a cluster: who schedules it, its nodes, and how to ask for them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$")] = Field(
        default="local", description="Name in messages and records."
    )
    scheduler: Scheduler = Field(
        default=Scheduler.LOCAL, description="local, slurm, pbs or allocation."
    )
    device_type: DeviceType = Field(
        default_factory=lambda: (
            DeviceType.CUDA if num_visible_gpus() else DeviceType.CPU
        ),
        description="What a rank runs on: cpu (a core each) or cuda (a GPU each).",
    )
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
    start_timeout: Duration = Field(
        default=300.0,
        description="Time a node may take to answer once its job runs, such as 5min.",
    )
    max_idle: Duration = Field(
        default=600.0,
        description="Time nodes are held that wait for others, such as 10min.",
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
    node_groups: dict[GroupName, NodeSettings] = Field(
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
    _group: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _has_no_conflicts(self) -> Site:
        refuse_conflicts(self)
        return self

    @classmethod
    def local(cls) -> Site:
        """Return the machine this process runs on, as it is."""
        return cls()

    @classmethod
    def find(cls, name_or_path: str) -> Site:
        """Return a site by the name of its profile or by the path of a YAML file.

        Profiles lie in ``$XDG_CONFIG_HOME/scalelab/sites`` (``~/.config`` by default).

        Raises
        ------
        SpecError
            If there is none, or its profile is wrong.
        """
        if is_path(name_or_path):
            return cls.from_file(Path(name_or_path).expanduser())
        profiles = available_sites()
        if name_or_path in profiles:
            return cls.from_file(profiles[name_or_path])
        if name_or_path == "local":
            return cls.local()
        raise paragraph(
            f"no site is called {name_or_path[:60]!r}. "
            f"{one_of([*profiles, 'local'], name_or_path)} Profiles are read from "
            f"{sites_directory()}/NAME.yaml; a path to a YAML file works too."
        )

    @classmethod
    def from_file(cls, path: Path) -> Site:
        """Read a profile; a site without a name is called like its file.

        Raises
        ------
        SpecError
            If the file cannot be read or a setting is wrong.
        """
        values = parse_document(read_document(path), source=str(path))
        return validated(cls, {"name": path.stem, **values}, source=str(path))

    @property
    def group(self) -> str | None:
        """Name of the node group that this site stands for; None: all its nodes."""
        return self._group

    @property
    def groups(self) -> Mapping[str | None, Site]:
        """Each node group by its name, as a site of its own kind of nodes.

        A site without groups is its only one, by the name None.
        """
        if not self.node_groups:
            return {self._group: self}
        return {name: self._in_group(name) for name in self.node_groups}

    def in_group(self, name: str | None) -> Site:
        """Return the site as it is for the nodes of a group; None: all are alike.

        Raises
        ------
        SpecError
            If it has no such group.
        """
        groups = self.groups
        if name in groups:
            return groups[name]
        if name is None:
            raise SpecError(
                f"site {self.name!r} has node_groups, {', '.join(self.node_groups)}, "
                "and none of them was measured. Choose a site whose nodes are alike."
            )
        if not self.node_groups:
            raise SpecError(
                f"node_group={shown(name)}, but site {self.name!r} has no node_groups: "
                "its nodes are alike. Name no group, or add node_groups to the site."
            )
        raise SpecError(
            f"node_group={shown(name)} is none of site {self.name!r}. "
            f"{one_of(self.node_groups, name)}"
        )

    def _in_group(self, name: str) -> Site:
        own = self.node_groups[name]
        said = {key: getattr(own, key) for key in own.model_fields_set}
        name_of_both = {"name": f"{self.name}.{name}", "node_groups": {}}
        group = self.model_copy(update={**said, **name_of_both})
        group._group = name
        return group

    @property
    def asks_for_gpus(self) -> bool:
        """Jobs hold GPUs, whatever ranks run on."""
        if self.request_gpus is None:
            return self.device_type is DeviceType.CUDA
        return self.request_gpus

    @property
    def num_nodes(self) -> int | None:
        """Nodes a trial may span; None where the site sets no limit."""
        return 1 if self.scheduler is Scheduler.LOCAL and not self.nodes else self.nodes

    @property
    def devices_per_node(self) -> int:
        """Devices, and so ranks, that a node holds.

        Raises
        ------
        SpecError
            If they are to be found out and there is none.
        """
        if self.gpus_per_node:
            return self.gpus_per_node
        if self.device_type is DeviceType.CPU:
            return num_cores()
        if num_gpus := num_visible_gpus():
            return num_gpus
        raise SpecError(
            "device_type=cuda, but no GPU is visible here. Write device_type: cpu in "
            "the site, or say gpus_per_node."
        )

    @property
    def num_devices(self) -> int | None:
        """Devices in all; None where the site sets no limit."""
        return self.num_nodes and self.num_nodes * self.devices_per_node


def is_path(name_or_path: str) -> bool:
    """Tell whether a site is named by the path of its profile."""
    return "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))


def lasting_name(name_or_path: str) -> str:
    """Return what names the same site from any directory."""
    if not is_path(name_or_path):
        return name_or_path
    return str(Path(name_or_path).expanduser().absolute())


def sites_directory() -> Path:
    """Return the directory of the user's site profiles."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "scalelab" / "sites"


def available_sites() -> dict[str, Path]:
    """Return the user's site profiles by name."""
    return {path.stem: path for path in sorted(sites_directory().glob("*.yaml"))}

"""Settings of nodes that are alike: of a whole site, or of one of its node groups."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from scalelab.errors import SpecError
from scalelab.inputs.fields import (
    Bandwidth,
    CarbonRate,
    Count,
    DeviceCount,
    Duration,
    Effectiveness,
    Flag,
    Latency,
    Price,
    Section,
    Size,
    Text,
    Watts,
    Word,
)
from scalelab.inputs.links import Link
from scalelab.site.spot import Spot

_GROUP_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"


def _group_name(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(_GROUP_NAME, value):
        raise SpecError(
            "is no name of a node group. Use at most 32 of A-Z, a-z, 0-9, _ and -, and "
            "begin with a letter or a digit.",
            code="not_a_group_name",
        )
    return value


GroupName = Annotated[
    str,
    StringConstraints(strict=True, pattern=_GROUP_NAME),
    BeforeValidator(_group_name),
]


class DeviceType(StrEnum):
    """The kind of device that a rank runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class NodeLink(Section):
    """The network between two nodes."""

    bandwidth: Bandwidth = Field(
        description="What a node can send, such as 100Gbit/s or 12.5GB/s."
    )
    latency: Latency | None = Field(
        default=None, description="Time of the smallest message, such as 5us."
    )

    @property
    def link(self) -> Link:
        """The link, as laws read it."""
        return Link(bandwidth_bytes_per_s=self.bandwidth, latency_s=self.latency)


class Links(Section):
    """The links of the nodes, which stand in for what was not measured on them."""

    between_nodes: NodeLink = Field(description="The network between two nodes.")


class NodeSettings(Section):
    """Nodes of any scheduler: what they have and what they cost."""

    nodes: DeviceCount | None = Field(
        default=None, description="Nodes a trial may span; on a local site, 1."
    )
    gpus_per_node: DeviceCount | None = Field(
        default=None,
        description="Devices of a node; found out on a local site: GPUs, or cores.",
    )
    exclusive: Flag = Field(
        default=False, description="Ask for nodes nobody else may use."
    )
    price_per_gpu_hour: Price | None = Field(
        default=None,
        description=(
            "What a device is charged per hour, such as 2.5, which is in usd, or "
            "'2eur' or '40credits'; an exclusive node is charged for all it has."
        ),
    )
    price_per_node_hour: Price | None = Field(
        default=None,
        description="What a node is charged per hour, however much of it is used.",
    )
    power_w: Watts | None = Field(
        default=None,
        description="What a device draws while it trains, in W, such as 400; it counts "
        "where nothing measured it.",
    )
    pue: Effectiveness | None = Field(
        default=None,
        description="Power usage effectiveness: all energy of the site over that of "
        "its computers, such as 1.2.",
    )
    carbon_g_per_kwh: CarbonRate | None = Field(
        default=None,
        description="Grams of CO2 equivalents per kWh of the site's electricity.",
    )
    spot: Spot | None = Field(
        default=None,
        description="What is known of the same nodes where they may be interrupted: a "
        "price, or keys such as {price: 0.8, interrupted_every: 12h}.",
    )
    links: Links | None = Field(
        default=None,
        description=(
            "Link speeds of the nodes, such as {between_nodes: {bandwidth: 100Gbit/s, "
            "latency: 5us}}; recommend uses them where no trial ran on several nodes."
        ),
    )
    prologue: tuple[Text, ...] = Field(
        default=(),
        description="Shell lines before anything starts, such as module load.",
    )
    python: Word | None = Field(
        default=None, description="Interpreter on the nodes that has ScaleLab."
    )


class RemoteNodeSettings(NodeSettings):
    """Nodes other than this machine."""

    cores_per_node: Count | None = Field(
        default=None, description="Cores to ask for on each node."
    )


class BatchNodeSettings(RemoteNodeSettings):
    """Nodes that are asked for with a job script, whatever the batch system."""

    # of a node group only what it says counts: without this key it is the site's
    device_type: DeviceType = Field(
        default_factory=lambda: DeviceType.CUDA,
        description="What a rank runs on: cpu (a core each) or cuda (a GPU each).",
    )
    account: Word | None = Field(
        default=None, description="Account or project to charge."
    )
    walltime: Duration | None = Field(
        default=None, description="Time limit of a job, such as 4h or 04:00:00."
    )
    memory_per_node: Size | None = Field(
        default=None, description="Memory to ask for on each node, such as 64GB."
    )
    gpu_type: Word | None = Field(
        default=None, description="GPU model in the request, such as a100."
    )
    directives: tuple[Text, ...] = Field(
        default=(),
        description=(
            "Further options of the job, one per line, without the #SBATCH or #PBS "
            "before them."
        ),
    )

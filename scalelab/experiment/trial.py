"""A trial: one configuration, one seed, one repeat; and its batch arithmetic."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from scalelab.errors import SpecError

Scalar = str | int | float | bool
STALL_TIMEOUT_S = 30.0
FIRST_CANARY = 1_000
"""Repeat index from which on repeats are canaries; see ``experiment.canary``."""

_TARGET = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w./-]{0,63})\s*(?P<sign>[<>]=)\s*(?P<value>\S{1,30})\s*",
    re.ASCII,
)


class TrialKind(StrEnum):
    """What a trial is run to find out."""

    THROUGHPUT = "throughput"
    CONVERGENCE = "convergence"
    END_TO_END = "end_to_end"


class MetricMode(StrEnum):
    """Whether a smaller or a larger value of a metric is better."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A held-out metric and the value training must reach.

    Parameters
    ----------
    metric
        Name of the evaluation metric, e.g. ``val_acc``.
    mode
        ``max``: reached when the metric is at least ``value``; ``min``: at most.
    value
        The threshold, in the metric's own unit.
    """

    metric: str
    mode: MetricMode
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target as users write it.

        Raises
        ------
        SpecError
            If the text is not a metric, ``>=`` or ``<=``, and a finite number.

        >>> Target.parse("val_loss <= 2.9").mode
        <MetricMode.MIN: 'min'>
        """
        found = _TARGET.fullmatch(text)
        try:
            value = float(found["value"]) if found else math.nan
        except ValueError:
            value = math.nan
        if found is None or not math.isfinite(value):
            raise SpecError(
                f"{text[:60]!r} is not a target. A target is a metric, >= or <=, and a "
                "number, such as 'val_loss <= 2.9' or 'val_acc >= 0.75'."
            )
        mode = MetricMode.MAX if found["sign"] == ">=" else MetricMode.MIN
        return cls(metric=found["metric"], mode=mode, value=value)

    def is_reached_by(self, value: float) -> bool:
        """Tell whether a measured metric value reaches the target."""
        return (
            value >= self.value if self.mode is MetricMode.MAX else value <= self.value
        )

    def __str__(self) -> str:
        sign = ">=" if self.mode is MetricMode.MAX else "<="
        return f"{self.metric} {sign} {self.value:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """How many devices on how many nodes, e.g. ``(4, 4)`` or, uneven, ``(4, 2)``.

    Parameters
    ----------
    devices_per_node
        Devices used on each node, largest first; its length is the number of nodes.
    """

    devices_per_node: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.devices_per_node or min(self.devices_per_node) < 1:
            raise SpecError(
                f"devices_per_node={list(self.devices_per_node)} is not an allocation: "
                "every node needs at least 1 device."
            )
        ordered = tuple(sorted(self.devices_per_node, reverse=True))
        object.__setattr__(self, "devices_per_node", ordered)

    @classmethod
    def packed(cls, num_devices: int, devices_on_node: int) -> Allocation:
        """Pack devices on as few nodes as possible.

        >>> Allocation.packed(6, devices_on_node=4)
        Allocation(devices_per_node=(4, 2))
        """
        full, rest = divmod(num_devices, devices_on_node)
        nodes = (devices_on_node,) * full + ((rest,) if rest else ())
        return cls(devices_per_node=nodes)

    @property
    def world_size(self) -> int:
        """Devices in all; one rank runs on each."""
        return sum(self.devices_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes the devices are spread over."""
        return len(self.devices_per_node)

    @property
    def gpus_per_node(self) -> float:
        """Devices per node, a mean where the allocation is uneven."""
        return self.world_size / self.num_nodes

    def __str__(self) -> str:
        per_node = "+".join(
            str(count) for count in dict.fromkeys(self.devices_per_node)
        )
        return f"{self.num_nodes}x{per_node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """The learning rate of a trial and the rule that produced it.

    Parameters
    ----------
    base
        Learning rate at ``at_batch``.
    at_batch
        Global batch size (samples) for which ``base`` was tuned; None: no scaling.
    rule
        Name of the scaling rule: ``none``, ``linear`` or ``sqrt``.
    warmup_samples
        Samples over which the rate rises linearly from 0 to ``value``.
    value
        The rate after warm-up, the rule applied.
    """

    base: float
    at_batch: int | None
    rule: str
    warmup_samples: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What a trial does before it counts as done. Not part of the trial's identity.

    Parameters
    ----------
    warmup_steps
        Optimiser steps left out of every statistic.
    steps
        Measured optimiser steps, at most, for a throughput trial.
    relative_precision
        A throughput trial stops early when the half-width of the 95% block-bootstrap
        interval of its mean step time is below this fraction of it.
    max_samples
        Training samples after which a convergence or end-to-end trial gives up.
    evaluate_every_samples
        Training samples between two evaluations on held-out data.
    target
        The metric to reach; None for throughput trials.
    timeout_s
        Seconds after which the attempt is ended as ``timed_out``; None: no limit.
    stall_timeout_s
        Seconds without progress, at least, before the attempt is ended as ``stalled``.
    """

    warmup_steps: int = 5
    steps: int = 50
    relative_precision: float = 0.02
    max_samples: int | None = None
    evaluate_every_samples: int | None = None
    target: Target | None = None
    timeout_s: float | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One configuration, one seed, one repeat.

    Parameters
    ----------
    kind
        What the trial is run to find out.
    workload
        Built-in name, ``module:Class``, or ``command``.
    allocation
        Devices and nodes.
    local_batch_size
        Samples per rank per forward pass.
    gradient_accumulation_steps
        Forward-backward passes per optimiser step, at least 1.
    learning_rate
        The rate and its rule; None for a workload that has none (``emulated``).
    node_group
        The site's node group it runs on; None where its nodes are alike.
    parallelism, precision
        ``ddp``, ...; ``fp32``, ``bf16``, ``fp16``.
    seed
        Seeds every random generator and, with the global batch, the sample order.
    repeat
        0-based index among otherwise equal trials; from 1,000 on it is a canary.
    options
        Any further axis, by name.
    measurement
        How long the trial runs. Not hashed: a change of it is a change of meaning,
        which the run's frozen experiment detects.

    Notes
    -----
    ``global_batch_size = local_batch_size * data_parallel_size *
    gradient_accumulation_steps``, with ``data_parallel_size = world_size``.
    """

    kind: TrialKind
    workload: str
    allocation: Allocation
    local_batch_size: int
    gradient_accumulation_steps: int = 1
    learning_rate: LearningRate | None = None
    node_group: str | None = None
    parallelism: str = "ddp"
    precision: str = "fp32"
    seed: int = 0
    repeat: int = 0
    options: Mapping[str, Scalar] = field(default_factory=dict)
    measurement: Measurement = field(default_factory=Measurement)

    def __post_init__(self) -> None:
        for name in ("local_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)} must be at least 1.")

    @property
    def world_size(self) -> int:
        """Ranks, one per device."""
        return self.allocation.world_size

    @property
    def data_parallel_size(self) -> int:
        """Ranks that see different samples."""
        return self.allocation.world_size

    @property
    def global_batch_size(self) -> int:
        """Samples per optimiser step over all ranks."""
        return (
            self.local_batch_size
            * self.data_parallel_size
            * self.gradient_accumulation_steps
        )

    @property
    def canary_after(self) -> int | None:
        """Finished trials after which this canary is due; None: it is no canary."""
        return None if self.repeat < FIRST_CANARY else self.repeat - FIRST_CANARY

    @property
    def trial_id(self) -> str:
        """Hash of the configuration: 12 hexadecimal digits, stable across runs."""
        # Spelt out, since asdict() takes four times as long and every dispatch pays it.
        rate, allocation = self.learning_rate, self.allocation
        configuration: dict[str, Any] = {
            name: getattr(self, name) for name in self.__slots__
        }
        del configuration["measurement"]
        if self.node_group is None:  # as before there were groups
            del configuration["node_group"]
        configuration["options"] = dict(self.options)
        configuration["allocation"] = {"devices_per_node": allocation.devices_per_node}
        configuration["learning_rate"] = rate and {
            name: getattr(rate, name) for name in rate.__slots__
        }
        canonical = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the trial as plain JSON values; :meth:`from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trial:
        """Rebuild a trial from :meth:`to_json`."""
        fields = dict(values)
        fields["kind"] = TrialKind(fields["kind"])
        fields["allocation"] = Allocation(
            devices_per_node=tuple(fields["allocation"]["devices_per_node"])
        )
        rate = fields.get("learning_rate")
        fields["learning_rate"] = LearningRate(**rate) if rate else None
        measurement = dict(fields["measurement"])
        if target := measurement.get("target"):
            measurement["target"] = Target(
                metric=target["metric"],
                mode=MetricMode(target["mode"]),
                value=target["value"],
            )
        fields["measurement"] = Measurement(**measurement)
        return cls(**fields)

    def __str__(self) -> str:
        devices = "1 device" if self.world_size == 1 else f"{self.world_size} devices"
        return (
            f"{self.trial_id} ({self.kind}, {devices} on {self.allocation}, "
            f"global batch {self.global_batch_size})"
        )

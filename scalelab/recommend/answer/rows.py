"""A row of the answer: what one allocation would take."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from scalelab.inputs.document import Scalar
from scalelab.inputs.guessed import Guided, by_guess
from scalelab.inputs.money import USUAL
from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    duration_ends,
    percent,
)
from scalelab.kinds.resources import (
    DEVICE_HOURS,
    MONEY,
    RESOURCES,
    TIME,
    Resource,
    Units,
)

_GUESSED = by_guess(
    {
        "chosen.gpus": "num_gpus n_gpus ngpus devices num_devices size count slots",
        "chosen.num_nodes": "nodes n_nodes hosts",
        "chosen.time_s, with its ends": "seconds duration runtime walltime minutes "
        "days interval total_time time_hours eta",
        "chosen.gpu_hours": "device_hours gpu_h core_hours gpuh",
        "chosen.cost": "money usd price dollars cost_usd euros eur",
        "chosen.batch.global_batch_size": "batch_size global_batch global_batch_size",
        "chosen.batch.local_batch_size": "local_batch local_batch_size",
        "chosen.scaling_efficiency": "efficiency speedup scaling_factor",
        "chosen.throughput_samples_per_s": "throughput samples_per_second "
        "samples_per_s rate speed images_per_second",
        "chosen.throughput_tokens_per_s": "tokens_per_second tokens_per_s",
        "chosen.amounts['energy'] or ['carbon']": "energy kwh energy_kwh power "
        "carbon co2 carbon_g emissions",
        "chosen.step_time_s": "step_time time_per_step step",
        "chosen.flops_utilization": "mfu flops",
        "chosen.probability": "chance confidence",
        "answer.learning_rate": "lr learning_rate lr_rule",
        "chosen.to_json()": "to_dict as_dict dict json asdict",
    }
)

_NESTED = ("batch", "settings")
_UNFLATTENED = "compared_with"

# What grows with the devices: nothing but them, or the global batch as well
Scaling = Literal["strong", "weak", "other"]
# Why a row may not be chosen, where its basis does not say it
Barred = Literal[
    "batch", "slowed ranks", "contradicted", "doubted", "marked", "accuracy"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The division of one global batch among ranks and forward passes.

    ``global_batch_size = local_batch_size * data_parallel_size *
    gradient_accumulation_steps``.
    """

    local_batch_size: int
    data_parallel_size: int
    gradient_accumulation_steps: int
    global_batch_size: int

    def __str__(self) -> str:
        steps = self.gradient_accumulation_steps
        passes = f" x {steps} accumulation steps" if steps > 1 else ""
        return (
            f"global batch {self.global_batch_size} = {self.local_batch_size} x "
            f"{self.data_parallel_size}{passes}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlookRow(Guided):
    """The predicted time, cost and efficiency of one allocation.

    Parameters
    ----------
    device
        What its devices are called: of which node group, or their model; empty where
        the rows do not say.
    throughput_tokens_per_s
        The same in tokens; None where neither the job nor the rows say how many a
        sample has.
    flops_utilization
        Model FLOPs utilisation (MFU): the model's operations per second over the peak
        of all devices, 0 to 1; None where one of them is not known.
    amounts
        What the whole job takes, by the resource's name, with the interval of
        :attr:`Recommendation.interval`; None where it cannot be computed. In JSON each
        has the name of the resource's field.
    scaling_efficiency
        Samples per second and device over those of the smallest measured allocation;
        1.0 is ideal, may exceed 1. In JSON its ends are ``scaling_efficiency_lo`` and
        ``scaling_efficiency_hi``.
    scaling
        What both have in common there: the global batch (``strong``), the samples per
        device (``weak``), or neither (``other``); None on as many devices.
    compared_with
        The settings of the run there that its efficiency is against.
    next_world_size
        Devices of the next doubling, or of the next larger row; None for the last, and
        where one device count alone was measured.
    next_time_change, next_gpu_hours_change
        Relative change there, e.g. -0.45 for 45% less; None where there is none.
    probability
        Probability of meeting every constraint, in [0, 1]; None without constraints.
    is_pareto
        No other row is both faster and cheaper: in device-hours, or where several
        kinds of devices are compared and all have prices, in money.
    is_eligible
        May be chosen: its batch is inside the allowed range, it does not rest on a term
        that was not measured here, unless that was accepted, no rank was made slow on
        purpose, no other source contradicts or doubts what was measured there, and
        models so trained are accurate enough, where any are.
    barred_by
        Why it may not be chosen, ``batch``, ``slowed ranks``,
        ``contradicted``, ``doubted``, ``marked`` or ``accuracy``; None where its basis
        says it, or where it may.
    marks
        Figures that no second source confirms: the ``samples`` of a step, that the
        ``ranks`` work together, or ``samples, ranks``; None: all are confirmed.
    is_chosen, is_baseline
        The recommended row; the row efficiencies refer to.
    energy_source
        Where its energy and carbon come from: counters of devices (``measured``), or
        what devices are said to draw (``modelled``); None: neither is known.
    is_interruptible
        Its nodes are those of the spot market; what interruptions cost is in its time
        and amounts.
    """

    _instead: ClassVar[Mapping[str, str]] = _GUESSED

    device: str
    allocation: str
    world_size: int
    num_nodes: int
    batch: BatchPlan
    settings: Mapping[str, Scalar]
    samples_per_step: float
    step_time_s: Interval
    throughput_samples_per_s: Interval
    throughput_tokens_per_s: Interval | None
    flops_utilization: Interval | None
    samples: Interval
    amounts: Mapping[str, Interval | None]
    scaling_efficiency: Interval
    scaling: Scaling | None
    compared_with: Mapping[str, Scalar]
    next_world_size: int | None
    next_time_change: float | None
    next_gpu_hours_change: float | None
    basis: str
    probability: float | None
    is_pareto: bool
    is_eligible: bool
    is_chosen: bool
    is_baseline: bool
    is_interruptible: bool = False
    energy_source: str | None = None
    barred_by: Barred | None = None
    marks: str | None = None

    @property
    def gpus(self) -> int:
        """Devices of the allocation, :attr:`world_size`."""
        return self.world_size

    @property
    def time(self) -> Interval:
        """Time of the whole job in seconds, :attr:`time_s`."""
        return self.time_s

    @property
    def hours(self) -> Interval:
        """Time of the whole job in hours."""
        return self.time_s / 3600

    @property
    def time_s(self) -> Interval:
        """Time of the whole job."""
        return self._known(TIME)

    @property
    def gpu_hours(self) -> Interval:
        """Device-hours of the whole job."""
        return self._known(DEVICE_HOURS)

    @property
    def cost(self) -> Interval | None:
        """The cost of the whole job in the answer's currency; None: no price."""
        return self.amounts[MONEY.name]

    @property
    def spent(self) -> dict[Resource, Interval]:
        """Amounts of the resources that the job uses, where known."""
        return {
            RESOURCES[name]: amount
            for name, amount in self.amounts.items()
            if amount is not None and RESOURCES[name].is_spent
        }

    def __repr__(self) -> str:
        mark = ", recommended" if self.is_chosen else ""
        used = DEVICE_HOURS.in_words(self.gpu_hours.value, Units("device-h"))
        return (
            f"{counted(self.world_size, 'device')} ({self.allocation}), {self.batch}: "
            f"{duration(self.time_s.value)} [{duration_ends(self.time_s)}], {used}, "
            f"efficiency {percent(self.scaling_efficiency.value)}, {self.basis}{mark}"
        )

    def _known(self, resource: Resource) -> Interval:
        amount = self.amounts[resource.name]
        assert amount is not None, resource.name
        return amount

    def to_json(self, currency: str = USUAL) -> dict[str, Any]:
        """Return plain JSON values, each amount under the name of its field."""
        values: dict[str, Any] = {}
        for key, value in plain_values(asdict(self)).items():
            if key == "amounts":
                values |= {
                    RESOURCES[name].field_in(currency): amount
                    for name, amount in value.items()
                }
            elif key == "scaling_efficiency":
                values[key] = value["value"]
                values |= {f"{key}_{end}": value[end] for end in ("lo", "hi")}
            else:
                values[key] = value
        return values

    def to_record(self, currency: str = USUAL) -> dict[str, Any]:
        """Return the same without nesting: ``time_s``, ``time_s_lo``, ``time_s_hi``."""
        record: dict[str, Any] = {}
        for name, value in self.to_json(currency).items():
            if name in _NESTED:
                record |= value
            elif isinstance(value, dict) and name != _UNFLATTENED:
                record[name] = value["value"]
                record |= {f"{name}_{end}": value[end] for end in ("lo", "hi")}
            elif name != _UNFLATTENED:
                record[name] = value
        return record


class MeasuredStep(NamedTuple):
    """The measured step time of one configuration: median, least and most, and runs."""

    step_time_s: Interval
    num_runs: int


@dataclass(frozen=True, slots=True)
class ScalingSeries:
    """Allocations that have a global batch in common, or a batch per device.

    Parameters
    ----------
    scaling
        ``strong``: the global batch is the same; ``weak``: the local one.
    batch
        That batch.
    rows
        Increasing; the first is the base, which was measured.
    measured
        What was measured of each row; None: nothing.
    """

    scaling: str
    batch: int
    rows: tuple[OutlookRow, ...]
    measured: tuple[MeasuredStep | None, ...]


def plain_values(value: Any) -> Any:
    """Return plain JSON values; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The answer as plain values; text, JSON and the report are renderings of it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scalelab.inputs.document import Scalar
from scalelab.inputs.money import USUAL
from scalelab.inputs.numerals import SEVERAL, DeviceWords, Interval, device_words
from scalelab.kinds.resources import (
    DEVICE_HOURS,
    MONEY,
    RESOURCES,
    TIME,
    Resource,
    Units,
)
from scalelab.plan.memory_limits import MemoryLimit
from scalelab.recommend.answer.argument_words import (
    Ground,
    command_of,
    grounds,
    why_next,
)
from scalelab.recommend.answer.evidence import Evidence, RateRow, WayRow
from scalelab.recommend.answer.facts import Fact, NotedPart
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.reasons import how_many_ignored

# What grows with the devices: nothing but them, or the global batch as well
Scaling = Literal["strong", "weak", "other"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlookRow:
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
        purpose, and models so trained are accurate enough, where any are.
    is_chosen, is_baseline
        The recommended row; the row efficiencies refer to.
    energy_source
        Where its energy and carbon come from: counters of devices (``measured``), or
        what devices are said to draw (``modelled``); None: neither is known.
    is_interruptible
        Its nodes are those of the spot market; what interruptions cost is in its time
        and amounts.
    """

    device: str
    allocation: str
    world_size: int
    num_nodes: int
    batch: BatchPlan
    settings: Mapping[str, Scalar]
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

    def _known(self, resource: Resource) -> Interval:
        amount = self.amounts[resource.name]
        assert amount is not None, resource.name
        return amount

    def to_json(self, currency: str = USUAL) -> dict[str, Any]:
        """Return plain JSON values, each amount under the name of its field."""
        values: dict[str, Any] = {}
        for key, value in _plain(asdict(self)).items():
            if key == "amounts":
                values |= {
                    RESOURCES[name].field_in(currency): each
                    for name, each in value.items()
                }
            elif key == "scaling_efficiency":
                values[key] = value["value"]
                values |= {f"{key}_{end}": value[end] for end in ("lo", "hi")}
            else:
                values[key] = value
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """The knee: from where more devices return less than ``marginal_return``.

    Parameters
    ----------
    lo, hi
        World sizes that bound the knee; None: beyond the last row.
    term
        The cause; None where the knee is open or unlikely.
    probability_in_range
        Chance of a knee up to the last row; None where it is open.
    largest_measured
        The largest measured world size; larger rows rest on the law.
    """

    lo: int | None
    hi: int | None
    marginal_return: float
    term: str | None
    probability_in_range: float | None
    largest_measured: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTrial:
    """The measurement that would change the answer most.

    Parameters
    ----------
    settings
        The settings to run it with, by name; empty where there is no choice.
    gpu_hours
        Estimated device-hours; None where nothing measured says how long a step takes.
    """

    allocation: str
    world_size: int
    batch: BatchPlan
    steps: int
    gpu_hours: float | None
    why: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRatePlan:
    """The learning rate to use, and the rule it follows."""

    rule: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterRow:
    """One fitted parameter of a law."""

    law: str
    curve: str
    name: str
    value: float
    lo: float
    hi: float
    unit: str
    is_identified: bool
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Which allocation to use, what it costs, and what that rests on.

    Parameters
    ----------
    workload, device_name, node_group
        What was measured, on what; the site's node group, empty where nodes are alike.
    device_word, device_hour_word
        What a device is called here: ``GPU``/``GPU-h``, ``CPU slot``/``core-h``,
        ``emulated GPU``/``emulated GPU-h``.
    rows
        One per world size, increasing: of its placements and batches the best for what
        is asked.
    limits
        What the chosen row must hold, in words, e.g. ``< 4 h``; empty without limits.
    conditions
        What the models that were so trained must hold, in words, e.g. ``val_acc >=
        0.9``; empty: nothing was asked.
    condition
        What the chances take for granted, in words, e.g. ``90 epochs suffice at batch
        8192``; empty: nothing.
    learning_rate
        None where no learning rate was measured.
    knee
        None with fewer than two rows, or where one device count alone was measured:
        then nothing is known of doublings and extremes.
    next_trial
        None where no measurement would change the answer.
    price
        What is charged per hour and who says so, in sentences; None: not known.
    currency
        The currency of costs, such as ``usd``.
    devices
        Where several kinds of devices were compared, the words for each, by
        :attr:`OutlookRow.device`; empty where there is one kind.
    facts
        The notes on the answer: what it assumes, what could not be answered, and how
        many trials failed.
    left_out_of_convergence
        The same of the law of samples to a target; a row may count in both.
    memory_limits
        Which local batches did not fit into a device's memory; empty where all did.
    evidence
        What was measured besides the answer.
    sweep_gpu_hours
        Device-hours the observations cost; None where not recorded.
    sweep_spent
        What else they cost, by the resource's name in the unit of its field: money,
        energy and carbon, where all devices have a price or a power.
    limited
        The limits of the question as numbers, by the resource's name in the unit of its
        field; ``limits`` has them in words.
    what_if
        What would be chosen under other limits, see :mod:`scalelab.recommend.what_if`.
    """

    workload: str
    device_name: str
    node_group: str
    device_word: str
    device_hour_word: str
    rows: tuple[OutlookRow, ...]
    meets_constraints: bool
    limits: tuple[str, ...]
    condition: str
    objective: str
    interval: float
    confidence: float
    held: Mapping[str, Scalar]
    baseline: str
    learning_rate: LearningRatePlan | None
    knee: Knee | None
    next_trial: NextTrial | None
    price: str | None
    currency: str
    facts: tuple[Fact, ...]
    left_out: Mapping[str, int]
    left_out_of_convergence: Mapping[str, int]
    num_observations: int
    sweep_gpu_hours: float | None
    is_emulated: bool
    law: str
    formula: str
    elsewhere: Mapping[str, OutlookRow] = field(default_factory=dict)
    devices: Mapping[str, DeviceWords] = field(default_factory=dict)
    parameters: tuple[ParameterRow, ...] = field(default=())
    memory_limits: tuple[MemoryLimit, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    conditions: tuple[str, ...] = ()
    sweep_spent: Mapping[str, float] = field(default_factory=dict)
    limited: Mapping[str, float] = field(default_factory=dict)
    what_if: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ways(self) -> tuple[WayRow, ...]:
        """The ways to train that were measured; empty where there is only one."""
        return self.evidence.ways

    @property
    def rates(self) -> tuple[RateRow, ...]:
        """The learning rates that were tried for a target; empty without a target."""
        return self.evidence.rates

    @property
    def chosen(self) -> OutlookRow:
        """The recommended row."""
        return next(row for row in self.rows if row.is_chosen)

    @property
    def alike(self) -> tuple[OutlookRow, ...]:
        """The rows on the devices of the recommended row."""
        device = self.chosen.device
        return tuple(row for row in self.rows if row.device == device)

    @property
    def hour_of_all(self) -> str:
        """The word for a device-hour on all the devices that are compared."""
        hours = {words.hour for words in self.devices.values()}
        if len(hours) > 1:
            return device_words(SEVERAL, is_emulated=False).hour
        return self.device_hour_word

    def words(self, row: OutlookRow) -> DeviceWords:
        """Return the words for the devices of a row."""
        own = DeviceWords(self.device_word, self.device_hour_word)
        return self.devices.get(row.device, own)

    def units(self, row: OutlookRow) -> Units:
        """Return the units in which to write what a row takes."""
        return Units(self.words(row).hour, self.currency, row.energy_source or "")

    @property
    def pareto(self) -> tuple[OutlookRow, ...]:
        """Rows that no other row beats in both time and spending."""
        return tuple(row for row in self.rows if row.is_pareto)

    @property
    def grounds(self) -> tuple[Ground, ...]:
        """What the answer rests on: contradicted first, then open, then confirmed."""
        trials = how_many_ignored(
            self.left_out, self.num_observations, is_emulated=self.is_emulated
        )
        is_whole = not self.left_out
        found = grounds(self.facts, self.device_word, trials, is_whole=is_whole)
        unfitting = [str(limit).rstrip(".") for limit in self.memory_limits[:1]]
        return found + tuple(
            Ground(kind="memory", state="confirmed", text=text) for text in unfitting
        )

    @property
    def next_command(self) -> tuple[str, str]:
        """The command of the next step and what it is for; each may be empty."""
        for fact in self.facts:
            if fact.kind == "next_step":
                why = why_next(fact.values, self.device_word)
                return command_of(fact.values), why
        return "", ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the answer assumes, a sentence each."""
        return self.said("efficiency", "assumption")

    @property
    def unsupported(self) -> tuple[str, ...]:
        """What could not be answered, a sentence each."""
        return self.said("unanswered")

    def said(self, *parts: NotedPart) -> tuple[str, ...]:
        """Return the notes on these parts of the answer as sentences."""
        return tuple(
            in_words(fact, self.device_word)
            for fact in self.facts
            if fact.part in parts
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; a number that is not finite becomes None."""
        values: dict[str, Any] = _plain(asdict(self))
        beside, _ = values.pop("evidence"), values.pop("what_if")
        values |= {
            "facts": [{"kind": f["kind"], **f["values"]} for f in values["facts"]],
            "why_not": [*self.said("why_not")],
            "rests_on": [asdict(ground) for ground in self.grounds],
            "next_step": [*self.said("next_step")],
            "notes": [*self.notes],
            "unsupported": [*self.unsupported],
            "failures": " ".join(self.said("failed")),
            "ways": beside["ways"],
            "learning_rates": beside["rates"],
            "rows": [row.to_json(self.currency) for row in self.rows],
            "elsewhere": {
                name: row.to_json(self.currency) for name, row in self.elsewhere.items()
            },
            "devices": {n: words._asdict() for n, words in self.devices.items()},
        }
        shown_if_any = ("devices", "memory_limits", "ways", "learning_rates")
        return {n: each for n, each in values.items() if each or n not in shown_if_any}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

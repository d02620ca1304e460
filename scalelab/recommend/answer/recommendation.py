"""The answer as plain values; text, JSON and the report are renderings of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from scalelab.inputs.document import Scalar
from scalelab.inputs.lines import in_markdown
from scalelab.inputs.numerals import SEVERAL, DeviceWords, device_words
from scalelab.kinds.resources import (
    Units,
)
from scalelab.laws.left_out import LeftOut
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
from scalelab.recommend.answer.rows import (
    BatchPlan,
    OutlookRow,
    ScalingSeries,
    plain_values,
)

# Grounds that are about the chosen device alone
_OF_DEVICE = ("ignored", "failures", "not_settled", "few_readings", "memory")


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


@dataclass(frozen=True, kw_only=True)
class AskedPart:
    """What was asked of which measurements, and the words for both.

    Parameters
    ----------
    workload, device_name, node_group
        What was measured, on what; the site's node group, empty where nodes are alike.
    device_word, device_hour_word
        What a device is called here: ``GPU``/``GPU-h``, ``CPU slot``/``core-h``,
        ``emulated GPU``/``emulated GPU-h``.
    is_emulated
        Whether a declared machine was measured, not a real one.
    held
        The settings that all rows share, by name.
    limits
        What the chosen row must hold, in words, e.g. ``< 4 h``; empty without limits.
    limited
        The limits of the question as numbers, by the resource's name in the unit of its
        field; ``limits`` has them in words.
    conditions
        What the models that were so trained must hold, in words, e.g. ``val_acc >=
        0.9``; empty: nothing was asked.
    interval
        The mass of all intervals, between 0 and 1.
    confidence
        The chance with which limits must hold.
    price
        What is charged per hour and who says so, in sentences; None: not known.
    currency
        The currency of costs, such as ``usd``.
    """

    workload: str
    device_name: str
    node_group: str
    device_word: str
    device_hour_word: str
    is_emulated: bool
    held: Mapping[str, Scalar]
    limits: tuple[str, ...]
    limited: Mapping[str, float] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    interval: float
    confidence: float
    price: str | None
    currency: str

    def in_markdown(self) -> Self:
        """Return it with names that Markdown shows as they stand."""
        return replace(
            self,
            workload=in_markdown(self.workload),
            device_name=in_markdown(self.device_name),
            node_group=in_markdown(self.node_group),
        )


@dataclass(frozen=True, kw_only=True)
class ChosenPart:
    """Which allocation to use, beside which others, and what to do next.

    Parameters
    ----------
    rows
        One per world size, increasing: of its placements and batches the best for what
        is asked.
    meets_constraints
        Whether the chosen row surely holds what was asked.
    condition
        What the chances take for granted, in words, e.g. ``90 epochs suffice at batch
        8192``; empty: nothing.
    objective
        The rule of the choice, in words.
    baseline
        What efficiencies are compared with, in words.
    learning_rate
        None where no learning rate was measured.
    knee
        None with fewer than two rows, or where one device count alone was measured:
        then nothing is known of doublings and extremes.
    next_trial
        None where no measurement would change the answer.
    elsewhere
        The rows that would be chosen on other kinds of devices, by their names.
    devices
        Where several kinds of devices were compared, the words for each, by
        :attr:`OutlookRow.device`; empty where there is one kind.
    what_if
        What would be chosen under other limits, see :mod:`scalelab.recommend.what_if`.
    scaling
        Strong and weak scaling, see :mod:`scalelab.recommend.scaling`; empty where they
        were not asked for.
    """

    rows: tuple[OutlookRow, ...]
    meets_constraints: bool
    condition: str
    objective: str
    baseline: str
    learning_rate: LearningRatePlan | None
    knee: Knee | None
    next_trial: NextTrial | None
    elsewhere: Mapping[str, OutlookRow] = field(default_factory=dict)
    devices: Mapping[str, DeviceWords] = field(default_factory=dict)
    what_if: dict[str, Any] = field(default_factory=dict, repr=False)
    scaling: tuple[ScalingSeries, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class BasisPart:
    """What an answer rests on: facts, laws and measurements.

    Parameters
    ----------
    facts
        The notes on the answer: what it assumes, what could not be answered, and how
        many trials failed.
    left_out
        How many measurements were left out of the law of step times, and why.
    left_out_of_convergence
        The same of the law of samples to a target; a row may count in both.
    widened_by
        What the ends of the intervals of step times were moved outwards, in logarithms:
        by how well answers held for the jobs that were followed.
    sweep_gpu_hours
        Device-hours the observations cost; None where not recorded.
    sweep_spent
        What else they cost, by the resource's name in the unit of its field: money,
        energy and carbon, where all devices have a price or a power.
    law, formula
        The name of the law of step times, and its formula with the source.
    parameters
        The fitted parameters of the laws.
    memory_limits
        Which local batches did not fit into a device's memory; empty where all did.
    evidence
        What was measured besides the answer.
    """

    facts: tuple[Fact, ...]
    left_out: tuple[LeftOut, ...]
    left_out_of_convergence: tuple[LeftOut, ...]
    num_observations: int
    sweep_gpu_hours: float | None
    widened_by: float = 0.0
    sweep_spent: Mapping[str, float] = field(default_factory=dict)
    law: str
    formula: str
    parameters: tuple[ParameterRow, ...] = ()
    memory_limits: tuple[MemoryLimit, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True, kw_only=True)
class Recommendation(BasisPart, ChosenPart, AskedPart):
    """Which allocation to use, what it costs, and what that rests on."""

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
    def chooses_none(self) -> bool:
        """Whether no row may be recommended, as all are contradicted."""
        return self.chosen.barred_by == "contradicted"

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
        usual = DeviceWords(self.device_word, self.device_hour_word)
        return self.devices.get(row.device, usual)

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
        unfitting = [
            Ground(kind="memory", state="confirmed", text=str(limit).rstrip("."))
            for limit in self.memory_limits[:1]
        ]
        found = (
            *grounds(self.facts, self.device_word, trials, is_whole=is_whole),
            *unfitting,
        )
        if self.devices and (device := self.node_group or self.device_name):
            found = tuple(
                replace(ground, text=f"{device}: {ground.text}")
                if ground.kind in _OF_DEVICE
                else ground
                for ground in found
            )

        return found

    @property
    def chained_jobs(self) -> tuple[dict[str, Any], ...]:
        """How many jobs each allocation takes under a limit, by kind of device."""
        found = [fact.values for fact in self.facts if fact.kind == "chained_jobs"]
        return tuple(kind for values in found for kind in values["kinds"])

    @property
    def is_met(self) -> bool:
        """Whether what was asked surely holds, of a campaign by all runs together."""
        campaigns = [f.values["holds"] for f in self.facts if f.kind == "campaign"]
        return self.meets_constraints and all(campaigns)

    @property
    def asked_walltime_s(self) -> float | None:
        """The longest time of a job that was asked; None: none was."""
        asked_s = (k["limit_s"] for k in self.chained_jobs if k["is_asked"])
        return next(asked_s, None)

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
        return self.said("efficiency", "ideal", "assumption")

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
        values: dict[str, Any] = plain_values(asdict(self))
        for name in ("left_out", "left_out_of_convergence"):
            groups = getattr(self, name)
            values[name] = {
                ", ".join(group.reasons): group.num_rows for group in groups
            }

        beside, *_ = (values.pop(name) for name in ("evidence", "what_if", "scaling"))
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
        return {
            n: value for n, value in values.items() if value or n not in shown_if_any
        }

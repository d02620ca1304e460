"""A trial: one configuration, one seed, one repeat; and its batch arithmetic."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.inputs.numerals import counted
from scalelab.inputs.target import MetricMode, Target
from scalelab.kinds.strategies import DEFAULT_STRATEGY, strategy_of
from scalelab.kinds.trainers import facts_of

PROGRAM = "program"  # name of the axis of programs
# Repeat index from which on repeats are canaries; see with_canaries.
FIRST_CANARY = 1_000
# Repeat index of a long trial; see long_trials.
LONG = 1_000_000


def is_canary(repeat: float) -> bool:
    """Tell whether a trial of this repeat index, of a plan or a row, is a canary."""
    return FIRST_CANARY <= repeat < LONG


class TrialKind(StrEnum):
    """The family of a trial: what it measures."""

    THROUGHPUT = "throughput"
    CONVERGENCE = "convergence"
    END_TO_END = "end_to_end"


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """The learning rate of a trial and the rule that produced it."""

    base: float
    at_batch: int | None  # global batch, for which base was tuned; None: no scaling
    rule: str
    warmup_samples: int
    value: float
    # The length of the warm-up as it was asked, such as "500 steps"; empty: none. Not
    # part of the trial's identity, as its samples are
    warmup: str = ""

    def at(self, samples: float) -> float:
        """Return the rate of the step that ends at this many samples.

        It rises linearly from 0 to ``value`` over ``warmup_samples`` and stays there:
        the gradual warm-up of P. Goyal et al. (2017), section 2.2, which begins at the
        base rate.
        """
        is_warm = samples >= self.warmup_samples
        return self.value if is_warm else self.value * samples / self.warmup_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """How long a trial runs. Not part of the trial's identity."""

    warmup_steps: int = 5
    steps: int = 50
    # A throughput trial stops early when the half-width of the 95% block-bootstrap
    # interval of its mean step time is below this fraction of it.
    relative_precision: float = 0.02
    # Seconds of steps that a long trial takes at least; None: it is no long trial.
    least_s: float | None = None
    # Of the job; a long trial tells by them whether the first epoch is slower.
    samples_per_epoch: int | None = None
    max_samples: int | None = None
    evaluate_every_samples: int | None = None
    target: Target | None = None  # None for throughput trials
    timeout_s: float | None = None  # of the attempt; None: no limit
    stall_timeout_s: float | None = None  # without progress; None: as such programs do
    start_up_timeout_s: float | None = None  # None: 600, or stall_timeout_s if longer
    judged_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One configuration, one seed, one repeat.

    Parameters
    ----------
    local_batch_size
        Samples per rank per forward pass; with a layout, per replica.
    learning_rate
        The rate and its rule; None for a workload that has none (``emulated``).
    node_group
        The site's node group it runs on; None where its nodes are alike.
    repeat
        0-based index among otherwise equal trials; from 1,000 on it is a canary, and
        1,000,000 is the long trial.
    layout
        How a command splits its model over the ranks; None: it does not.
    program
        Name of the program it runs; None: the experiment has only one.
    measurement
        Not hashed: a change of it is one of the fingerprint.

    Notes
    -----
    ``global_batch_size = local_batch_size * data_parallel_size *
    gradient_accumulation_steps``; the layout, or else the strategy, says which part of
    the world size is data-parallel.
    """

    kind: TrialKind
    workload: str
    allocation: Allocation
    local_batch_size: int
    gradient_accumulation_steps: int = 1
    learning_rate: LearningRate | None = None
    node_group: str | None = None
    parallelism: str = DEFAULT_STRATEGY
    precision: str = "fp32"
    seed: int = 0
    repeat: int = 0
    options: Mapping[str, Scalar] = field(default_factory=dict)
    layout: Layout | None = None
    program: str | None = None
    measurement: Measurement = field(default_factory=Measurement)

    def __post_init__(self) -> None:
        for name in ("local_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise SpecError(
                    f"{name}={getattr(self, name)} must be at least 1.",
                    code="below_one",
                )

    @property
    def saves_checkpoints(self) -> bool:
        """Whether an attempt of a workload goes on where an earlier one ended."""
        return self.kind is not TrialKind.THROUGHPUT

    @property
    def is_emulated(self) -> bool:
        """Its times are declared, so that shared hardware does not matter."""
        facts = facts_of(self.workload)
        return facts is not None and facts.declares_times

    @property
    def world_size(self) -> int:
        """Ranks, one per device."""
        return self.allocation.world_size

    @property
    def data_parallel_size(self) -> int:
        """Ranks that see different samples; layout or strategy say how many."""
        if self.layout:
            return self.layout.data_parallel_size(self.world_size)
        strategy = strategy_of(self.parallelism)
        return strategy.data_parallel_size(self.world_size, self.options)

    @property
    def further_axes(self) -> dict[str, Scalar]:
        """The axes without a field of their own in records, by name."""
        program = {PROGRAM: self.program} if self.program else {}
        degrees = self.layout.degrees if self.layout else {}
        return {**program, **self.options, **degrees}

    @property
    def global_batch_size(self) -> int:
        """Samples per optimiser step over all ranks."""
        return (
            self.local_batch_size
            * self.data_parallel_size
            * self.gradient_accumulation_steps
        )

    @property
    def cycle(self) -> int:
        """Optimiser steps after which the work of a step repeats."""
        return strategy_of(self.parallelism).cycle(self.options)

    @property
    def max_steps(self) -> int:
        """Optimiser steps that it trains, warm-up included.

        A long trial trains more, and so does a trial that settles late. Measured steps
        are whole cycles, rounded up.
        """
        measurement = self.measurement
        if self.kind is TrialKind.THROUGHPUT:
            num_cycles = -(-measurement.steps // self.cycle)
            return measurement.warmup_steps + num_cycles * self.cycle
        return -(-(measurement.max_samples or 0) // self.global_batch_size)

    @property
    def is_canary(self) -> bool:
        """The trial is a canary: it shows whether the machine has changed."""
        return is_canary(self.repeat)

    @property
    def is_long(self) -> bool:
        """The trial shows whether later steps take as long as those of other trials."""
        return self.repeat == LONG

    @property
    def canary_after(self) -> int | None:
        """Finished trials after which this canary is due; None: it is no canary."""
        return self.repeat - FIRST_CANARY if self.is_canary else None

    @property
    def trial_id(self) -> str:
        """Hash of the configuration: 12 hexadecimal digits, stable across runs."""
        # Spelt out, since asdict() takes four times as long and every dispatch pays it.
        rate, allocation = self.learning_rate, self.allocation
        configuration: dict[str, Any] = {
            name: getattr(self, name) for name in self.__slots__
        }
        del configuration["measurement"]

        for name in ("node_group", "layout", "program"):
            if configuration[name] is None:  # as in runs without such a key
                del configuration[name]

        if self.layout is not None:
            configuration["layout"] = asdict(self.layout)

        configuration["options"] = dict(self.options)
        configuration["allocation"] = {"devices_per_node": allocation.devices_per_node}
        configuration["learning_rate"] = rate and {
            name: getattr(rate, name) for name in rate.__slots__ if name != "warmup"
        }
        canonical = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the trial as plain JSON values; :meth:`from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild a trial from :meth:`to_json`."""
        rate, layout = values.get("learning_rate"), values.get("layout")
        measurement = dict(values["measurement"])
        measurement["judged_by"] = tuple(measurement.get("judged_by", ()))

        if target := measurement.get("target"):
            mode = MetricMode(target["mode"])
            measurement["target"] = Target(**{**target, "mode": mode})

        typed = {
            "kind": TrialKind(values["kind"]),
            "allocation": Allocation(
                devices_per_node=tuple(values["allocation"]["devices_per_node"])
            ),
            "learning_rate": LearningRate(**rate) if rate else None,
            "layout": Layout(**layout) if layout else None,
            "measurement": Measurement(**measurement),
        }
        return cls(**{**values, **typed})

    def __str__(self) -> str:
        return (
            f"{self.trial_id} ({self.kind}, {counted(self.world_size, 'device')} on "
            f"{self.allocation}, global batch {self.global_batch_size})"
        )


def with_canaries(trials: Sequence[Trial], every: int) -> list[Trial]:
    """Insert the canary at the start, after every ``every`` trials, and at the end.

    The canary, which shows that the machine changes, is the first throughput trial of
    the cheapest configuration: the one with the fewest samples per step, since device
    time grows with them; among equals the fewest devices, then the fewest nodes, then
    the first in the plan. Its repeat index says when it is due, so that a plan that is
    resumed, or extended, asks for the same canaries and for no more than it lacks.
    """
    planned = list(trials)
    cheapest = min(
        (trial for trial in trials if trial.kind is TrialKind.THROUGHPUT),
        key=lambda trial: (
            trial.global_batch_size,
            trial.world_size,
            trial.allocation.num_nodes,
        ),
        default=None,
    )
    if not every or len(trials) < every or cheapest is None:
        return planned

    for moment in (len(trials), *range(0, len(trials) - every + 1, every)[::-1]):
        planned.insert(moment, replace(cheapest, repeat=FIRST_CANARY + moment))

    return planned


def long_trials(trials: Iterable[Trial], least_s: float) -> dict[str | None, Trial]:
    """Return the long trial of each program: its widest throughput trial once more.

    The widest trial goes through most of the job in a given time. Of equally wide
    trials, the trial with the fewest samples per step is taken: it fits the memory if
    any of them does. Declared times need no long trial.
    """
    found: dict[str | None, Trial] = {}
    for trial in sorted(
        trials, key=lambda trial: (-trial.world_size, trial.global_batch_size)
    ):
        if trial.kind is TrialKind.THROUGHPUT and not trial.is_emulated:
            measurement = replace(trial.measurement, least_s=least_s)
            longer = replace(trial, repeat=LONG, measurement=measurement)
            found.setdefault(trial.program, longer)
    return found

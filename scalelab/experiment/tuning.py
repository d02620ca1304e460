"""What a search tunes: settings, the values they may have, and what is best."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.fields import (
    AxisName,
    Count,
    OneOrMany,
    OptionValue,
    Section,
    Word,
)
from scalelab.inputs.problems import shown
from scalelab.inputs.target import MetricMode, Target

RATE = "learning_rate"
"""The setting that every program has, and no option is."""
TIME = "time"
"""The objective that no evaluation reports."""
DEFAULT_TRIALS = 40

Sampler = Literal["tpe", "random", "grid"]
Number = Annotated[float, Field(strict=True, ge=-1e18, le=1e18)]
WholeNumber = Annotated[int, Field(strict=True, ge=-(10**15), le=10**15)]


class TunedValues(Section):
    """The values that a search may give a setting: a range, or a list of choices."""

    shorthand: ClassVar[JsonSchemaValue | None] = {
        "type": "array",
        "items": {"type": ["string", "number", "boolean"]},
        "minItems": 2,
    }

    log: tuple[Number, Number] | None = Field(
        default=None, description="From and to, drawn evenly from their logarithms."
    )
    between: tuple[Number, Number] | None = Field(
        default=None, alias="float", description="From and to."
    )
    whole: tuple[WholeNumber, WholeNumber] | None = Field(
        default=None, alias="int", description="Whole numbers, from and to."
    )
    choices: OneOrMany[OptionValue] = Field(
        default=(), description="The values; short: a list of them."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, Mapping | cls):
            return value
        if isinstance(value, list | tuple):
            return {"choices": value}
        raise SpecError(
            f"{shown(value)} is nothing to choose from. Write a list of values, {{log: "
            "[1.0e-5, 1.0e-1]}, {float: [0, 0.5]} or {int: [2, 6]}; a setting of one "
            "value belongs under options.",
            code="nothing_to_choose",
        )

    @model_validator(mode="after")
    def _has_one_range(self) -> Self:
        ranges = [r for r in (self.log, self.between, self.whole) if r is not None]
        if len(ranges) + bool(self.choices) != 1:
            raise SpecError(
                "must have exactly one of log, float, int and choices.",
                code="not_one_space",
            )

        if self.choices and len(self.choices) < 2:
            raise SpecError(
                f"{shown(self.choices[0])} is the only choice. Write at least two, or "
                "set it under options.",
                code="only_choice",
            )

        for low, high in ranges:
            if low >= high:
                raise SpecError(
                    f"from {low:g} to {high:g} is no range. Write the smaller first.",
                    code="empty_range",
                )

        if self.log and self.log[0] <= 0:
            raise SpecError(
                f"log: {self.log[0]:g} has no logarithm. Begin above 0, or write "
                "float.",
                code="no_logarithm",
            )

        return self

    @property
    def num_values(self) -> int | None:
        """The number of values; None: there is no end of them."""
        return None if self.log or self.between else len(self.listed())

    def listed(self) -> Sequence[Scalar]:
        """Return the values, if there is an end of them."""
        return range(self.whole[0], self.whole[1] + 1) if self.whole else self.choices

    @property
    def middle(self) -> Scalar:
        """The value in the middle of the range, or the first choice."""
        if self.log:
            return math.sqrt(self.log[0] * self.log[1])
        if self.between:
            return sum(self.between) / 2
        return sum(self.whole) // 2 if self.whole else self.choices[0]

    def holds(self, value: object) -> bool:
        """Tell whether a value is one of these."""
        if self.choices:
            is_flag = isinstance(value, bool)
            alike = [c for c in self.choices if isinstance(c, bool) == is_flag]
            return value in alike
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high = self.log or self.between or self.whole or (0, 0)
        is_of_kind = not self.whole or float(value).is_integer()
        return is_of_kind and low <= value <= high

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        low, high = self.log or self.between or self.whole or (0, 0)
        scale = ", log" if self.log else ""
        return f"{low:g} to {high:g}{scale}"


class Objective(Section):
    """What is best: the last value of a metric, or the time that training takes."""

    shorthand: ClassVar[JsonSchemaValue | None] = {"type": "string"}

    metric: Word = Field(description="A metric of evaluations, or time.")
    mode: MetricMode | None = Field(
        default=None,
        description=(
            "min or max; default: as the job's target has it, else by the name: less "
            "is better of time, a loss, an error or a perplexity."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"metric": value} if isinstance(value, str) else value

    @property
    def is_time(self) -> bool:
        """Whether it is the time of training."""
        return self.metric == TIME

    @property
    def is_smaller_better(self) -> bool:
        """Whether less of it is better."""
        return self.mode is MetricMode.MIN

    def beside(self, target: Target | None) -> Self:
        """Return it with its mode, where the job has this target."""
        usual = MetricMode.MIN if self.is_time else MetricMode.usual(self.metric)
        if target is not None and target.metric == self.metric:
            usual = target.mode
        return self.model_copy(update={"mode": self.mode or usual})

    def __str__(self) -> str:
        return f"{self.metric} ({self.mode})"


class TuneKeys(Section):
    """The keys of a search, beside its source or under it."""

    tune: dict[AxisName, TunedValues] = Field(
        default={},
        description=(
            "Settings that a search chooses: {weight_decay: {log: [1.0e-5, 0.1]}, "
            "dropout: {float: [0, 0.5]}, depth: {int: [2, 6]}, act: [relu, gelu]}."
        ),
    )
    objective: OneOrMany[Objective] = Field(
        default=(),
        description=(
            "What is best: a metric, time, or {metric, mode}; several: their Pareto "
            "front. Default: the metric of job.target."
        ),
    )
    trials: Count | None = Field(
        default=None,
        description=f"Trials of a search; default: {DEFAULT_TRIALS}, of a grid all.",
    )
    sampler: Sampler | None = Field(
        default=None,
        description="What chooses the values: tpe (default), random or grid.",
    )

    @model_validator(mode="after")
    def _searches_something(self) -> Self:
        for name in ("objective", "trials", "sampler"):
            if getattr(self, name) and not self.tune:
                raise SpecError(
                    f"{name} belongs to a search. Add what it chooses, such as tune: "
                    f"{{weight_decay: {{log: [1.0e-5, 0.1]}}}}, or remove {name}.",
                    code="key_of_search",
                )

        if self.sampler != "grid":
            return self

        for name, values in self.tune.items():
            if not values.choices:
                raise SpecError(
                    f"sampler=grid tries every combination, and tune.{name} is a range "
                    f"({values}). List its values, or use sampler: random.",
                    code="grid_of_range",
                )

        if self.trials and self.trials != self.num_combinations:
            raise SpecError(
                f"sampler=grid tries all {self.num_combinations:,} combinations; "
                f"trials={self.trials:,} says otherwise. Remove trials, or use "
                "sampler: random.",
                code="grid_has_own_trials",
            )

        return self

    @property
    def num_combinations(self) -> int | None:
        """The number of settings there are; None: there is no end of them."""
        counts = [values.num_values for values in self.tune.values()]
        return None if None in counts else math.prod(filter(None, counts))

    @property
    def num_trials(self) -> int:
        """The number of trials of the search."""
        wanted = self.trials or DEFAULT_TRIALS
        combinations = self.num_combinations
        if combinations is None:
            return wanted
        return combinations if self.sampler == "grid" else min(wanted, combinations)

    def objectives(self, target: Target | None) -> Sequence[Objective]:
        """Return what is best, each with its mode; empty: nothing says."""
        objectives = self.objective
        if not objectives and target is not None:
            objectives = (Objective(metric=target.metric),)
        return [objective.beside(target) for objective in objectives]

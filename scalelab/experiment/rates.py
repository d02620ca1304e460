"""Learning rates: scaling with the global batch or staleness, and warm-up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue

from scalelab.errors import SpecError
from scalelab.experiment.trial import LearningRate
from scalelab.inputs.fields import Count, OneOrMany, Positive, Section
from scalelab.inputs.problems import shown


class LearningRateRule(StrEnum):
    """How the learning rate scales with the global batch, or with staleness.

    References
    ----------
    ``linear``: P. Goyal et al. (2017), Accurate, Large Minibatch SGD, section 2.1.
    ``sqrt``: A. Krizhevsky (2014), One weird trick, section 5; E. Hoffer et al. (2017),
    Train longer, generalize better, section 4. ``staleness``: S. Gupta, W. Zhang,
    F. Wang (2016), Model Accuracy and Runtime Tradeoff in Distributed Deep Learning:
    the rate is divided by the mean staleness of gradients. ``tuned`` is no rule: the
    rate of each batch is searched.
    """

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"
    STALENESS = "staleness"
    TUNED = "tuned"


class Warmup(Section):
    """The length of the warm-up; exactly one of the three is set."""

    epochs: Positive | None = Field(
        default=None, description="Needs an epoch's length."
    )
    samples: Count | None = Field(default=None, description="Training samples.")
    steps: Count | None = Field(default=None, description="Optimiser steps.")

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        lengths = (self.epochs, self.samples, self.steps)
        if sum(value is not None for value in lengths) != 1:
            raise SpecError(
                "must have exactly one of epochs, samples and steps.",
                code="not_one_length",
            )
        return self

    def __str__(self) -> str:
        ((unit, length),) = self.model_dump(exclude_none=True).items()
        return f"{length:g} {unit}"

    def num_samples(self, global_batch_size: int, samples_per_epoch: int | None) -> int:
        """Return the length of the warm-up in training samples."""
        if self.steps:
            return self.steps * global_batch_size
        return self.samples or math.ceil((self.epochs or 0) * (samples_per_epoch or 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSetting:
    """One way to set the learning rate: a base, a rule and a warm-up.

    ``at_batch`` is the global batch that the base was tuned at; None: no rule scales.
    """

    base: float
    at_batch: int | None
    rule: LearningRateRule
    warmup: Warmup | None

    @classmethod
    def plain(cls, rate: float) -> Self:
        """Return a rate that nothing scales, without warm-up."""
        return cls(base=rate, at_batch=None, rule=LearningRateRule.NONE, warmup=None)

    def at(
        self,
        global_batch_size: int,
        samples_per_epoch: int | None,
        *,
        steps_in_flight: int = 1,
    ) -> LearningRate:
        """Return the learning rate of a trial."""
        length = 0
        if self.warmup:
            length = self.warmup.num_samples(global_batch_size, samples_per_epoch)

        return LearningRate(
            base=self.base,
            at_batch=self.at_batch,
            rule=self.rule.value,
            warmup_samples=length,
            warmup=str(self.warmup or ""),
            value=scaled_rate(
                self.base,
                rule=self.rule,
                at_batch=self.at_batch or global_batch_size,
                global_batch_size=global_batch_size,
                steps_in_flight=steps_in_flight,
            ),
        )


NO_WARMUP = "none"


WarmupOrNone = Annotated[
    Warmup | None,
    BeforeValidator(lambda value: None if value == NO_WARMUP else value),
    WithJsonSchema({"anyOf": [{"const": NO_WARMUP}, Warmup.model_json_schema()]}),
]


class Rates(Section):
    """Learning rates, the batch they were tuned at, the rules to follow, warm-ups.

    Bases, rules and warm-ups are axes: every combination is a setting of its own.
    """

    shorthand: ClassVar[JsonSchemaValue | None] = {
        "anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]
    }

    base: OneOrMany[Positive] = Field(
        description="Learning rate at at_batch, or a list of them."
    )
    at_batch: Count | None = Field(
        default=None, description="Global batch size that base was tuned at."
    )
    rule: OneOrMany[LearningRateRule] = Field(
        default=(LearningRateRule.NONE,),
        description=(
            "none, linear or sqrt, or a list of them; staleness: base over workers x "
            "communication_window; tuned: searched for each batch."
        ),
    )
    warmup: OneOrMany[WarmupOrNone] = Field(
        default=(None,),
        description=(
            "none, {epochs: 5}, {samples: 10000} or {steps: 100}, or a list of them."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, dict | cls):
            return value
        listed = value if isinstance(value, list) else [value]
        if all(type(rate) in (int, float) for rate in listed):
            return {"base": value}

        raise SpecError(
            f"{shown(value)} is no learning rate. Write a number, a list of them, or "
            "{base: [0.05, 0.1], at_batch: 256, rule: [linear, sqrt], warmup: [none, "
            "{steps: 100}]}.",
            code="not_a_rate",
        )

    @model_validator(mode="after")
    def _scales_from_somewhere(self) -> Self:
        tuned = LearningRateRule.TUNED
        if tuned in self.rule and len(self.base) + len(self.rule) > 2:
            raise SpecError(
                "rule=tuned searches the rate from one base, and the answer says what "
                "linear and sqrt would have come to. Leave one base and no other rule.",
                code="tuned_with_rules",
            )

        of_batch = (LearningRateRule.LINEAR, LearningRateRule.SQRT, tuned)
        scaling = [rule for rule in self.rule if rule in of_batch]
        if scaling and self.at_batch is None:
            raise SpecError(
                f"rule={scaling[0]} scales base from the batch it was tuned at. Add "
                "at_batch, a global batch size.",
                code="no_batch_of_rate",
            )

        if self.at_batch is not None and "rule" not in self.model_fields_set:
            raise SpecError(
                f"at_batch={self.at_batch} does nothing without a rule. Add rule: "
                "linear, sqrt or none.",
                code="batch_without_rule",
            )

        return self

    def settings(self) -> Sequence[RateSetting]:
        """Return every combination of the listed bases, rules and warm-ups."""
        return [
            RateSetting(base=base, at_batch=self.at_batch, rule=rule, warmup=warmup)
            for base, rule, warmup in product(self.base, self.rule, self.warmup)
        ]


def scaled_rate(
    base: float,
    *,
    rule: LearningRateRule,
    at_batch: int,
    global_batch_size: int,
    steps_in_flight: int = 1,
) -> float:
    """Return the learning rate for a global batch.

    With ``k = global_batch_size / at_batch``: ``base`` (none), ``k base`` (linear),
    ``sqrt(k) base`` (sqrt); ``base / steps_in_flight`` (staleness).

    See :class:`LearningRateRule`. Linear scaling was found to hold up to about 8k
    samples on ImageNet (Goyal et al. 2017, figure 1) and fails beyond.

    >>> scaled_rate(0.1, rule=LearningRateRule.LINEAR, at_batch=256,
    ...             global_batch_size=1024)
    0.4
    """
    ratio = global_batch_size / at_batch
    if rule is LearningRateRule.STALENESS:
        return base / steps_in_flight
    if rule is LearningRateRule.LINEAR:
        return base * ratio
    return base * math.sqrt(ratio) if rule is LearningRateRule.SQRT else base

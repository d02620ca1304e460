"""The learning rates that an experiment asks for."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from scalelab.errors import SpecError
from scalelab.experiment.lr_rules import LearningRateRule, scaled_rate
from scalelab.experiment.trial import LearningRate
from scalelab.inputs.fields import Count, OneOrMany, Positive, Section
from scalelab.inputs.problems import shown


class Warmup(Section):
    """The length of the warm-up; exactly one of the three is set."""

    epochs: Positive | None = Field(
        default=None, description="Needs an epoch's length."
    )
    samples: Count | None = Field(default=None, description="Training samples.")
    steps: Count | None = Field(default=None, description="Optimiser steps.")

    @model_validator(mode="after")
    def _has_one_length(self) -> Warmup:
        if (
            sum(value is not None for value in (self.epochs, self.samples, self.steps))
            != 1
        ):
            raise SpecError("must have exactly one of epochs, samples and steps.")
        return self

    def num_samples(self, global_batch_size: int, samples_per_epoch: int | None) -> int:
        """Return the length of the warm-up in training samples."""
        if self.steps:
            return self.steps * global_batch_size
        return self.samples or math.ceil((self.epochs or 0) * (samples_per_epoch or 0))


class Rates(Section):
    """A learning rate, the batch it was tuned at, and the rules to follow."""

    shorthand: ClassVar[JsonSchemaValue | None] = {"type": "number"}

    base: Positive = Field(description="Learning rate at at_batch.")
    at_batch: Count | None = Field(
        default=None, description="Global batch size that base was tuned at."
    )
    rule: OneOrMany[LearningRateRule] = Field(
        default=(LearningRateRule.NONE,),
        description=(
            "none, linear or sqrt, or a list of them; staleness: base over workers x "
            "communication_window."
        ),
    )
    warmup: Warmup | None = Field(
        default=None, description="{epochs: 5}, {samples: 10000} or {steps: 100}."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, dict | cls):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"base": value}
        raise SpecError(
            f"{shown(value)} is no learning rate. Write one number, or {{base: 0.1, "
            "at_batch: 256, rule: [linear, sqrt]}: rules are an axis, rates are not."
        )

    @model_validator(mode="after")
    def _scales_from_somewhere(self) -> Rates:
        scaling = [rule for rule in self.rule if rule.scales_with_batch]
        if scaling and self.at_batch is None:
            raise SpecError(
                f"rule={scaling[0]} scales base from the batch it was tuned at. Add "
                "at_batch, a global batch size."
            )
        if self.at_batch is not None and "rule" not in self.model_fields_set:
            raise SpecError(
                f"at_batch={self.at_batch} does nothing without a rule. Add rule: "
                "linear, sqrt or none."
            )
        return self

    def at(
        self,
        rule: LearningRateRule,
        global_batch_size: int,
        samples_per_epoch: int | None,
        *,
        steps_in_flight: int = 1,
    ) -> LearningRate:
        """Return the learning rate of a trial."""
        length = (
            self.warmup.num_samples(global_batch_size, samples_per_epoch)
            if self.warmup
            else 0
        )
        return LearningRate(
            base=self.base,
            at_batch=self.at_batch,
            rule=rule.value,
            warmup_samples=length,
            value=scaled_rate(
                self.base,
                rule=rule,
                at_batch=self.at_batch or global_batch_size,
                global_batch_size=global_batch_size,
                steps_in_flight=steps_in_flight,
            ),
        )

"""Targets and conditions: a held-out metric and the value it is held against."""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from scalelab.errors import SpecError

_PATTERN = (
    r"\s*(?P<metric>[A-Za-z_][\w./-]{{0,63}})\s*(?P<sign>{sign})\s*"
    r"(?P<value>[^\s<>=]\S{{0,29}})\s*"
)
_TARGET = re.compile(_PATTERN.format(sign="[<>]="), re.ASCII)
_CONDITION = re.compile(_PATTERN.format(sign="[<>]=?"), re.ASCII)
_HOLDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


_FALLS = re.compile("loss|(^|[^a-z])(err|perplexity|ppl|nll|r?mse|mae|wer)")


class MetricMode(StrEnum):
    """Whether a smaller or a larger value of a metric is better."""

    MIN = "min"
    MAX = "max"

    @classmethod
    def usual(cls, metric: str) -> Self:
        """Return what is better of a metric, by its name."""
        return cls("min" if _FALLS.search(metric.lower()) else "max")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A held-out metric and the value training must reach."""

    metric: str
    mode: MetricMode  # max: reached when the metric is at least the value; min: at most
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a target as users write it."""
        rule = (
            "is not a target. A target is a metric, >= or <=, and a number, such as "
            "'val_loss <= 2.9' or 'val_acc >= 0.75'."
        )
        metric, sign, value = _parsed(_TARGET, text, rule)
        mode = MetricMode.MAX if sign == ">=" else MetricMode.MIN
        return cls(metric=metric, mode=mode, value=value)

    def is_reached_by(self, value: float) -> bool:
        """Tell whether a measured metric value reaches the target."""
        return (
            value >= self.value if self.mode is MetricMode.MAX else value <= self.value
        )

    def __str__(self) -> str:
        sign = ">=" if self.mode is MetricMode.MAX else "<="
        return f"{self.metric} {sign} {self.value:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A condition that an evaluation of a trained model must hold."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a condition as users write it."""
        rule = (
            "is not a condition. A condition is a metric, one of >=, <=, > and <, and "
            "a number, such as 'val_acc >= 0.9'."
        )
        metric, sign, value = _parsed(_CONDITION, text, rule)
        return cls(metric=metric, sign=sign, value=value)

    def holds_for(self, value: float) -> bool:
        """Tell whether a measured metric value holds the condition."""
        return bool(_HOLDS[self.sign](value, self.value))

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.value:g}"


def hold(
    conditions: Sequence[Condition], metrics: Mapping[str, float | None]
) -> bool | None:
    """Tell whether all conditions hold; None where a metric was not evaluated."""
    if any(condition.metric not in metrics for condition in conditions):
        return None
    values = [(condition, metrics[condition.metric]) for condition in conditions]
    return all(
        value is not None and condition.holds_for(value) for condition, value in values
    )


def _parsed(pattern: re.Pattern[str], text: str, rule: str) -> tuple[str, str, float]:
    if found := pattern.fullmatch(text):
        with suppress(ValueError):
            if math.isfinite(value := float(found["value"])):
                return found["metric"], found["sign"], value
    raise SpecError(f"{text[:60]!r} {rule}", code="not_a_target")

"""A target: a held-out metric and the value that training must reach."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from scalelab.errors import SpecError

_TARGET = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w./-]{0,63})\s*(?P<sign>[<>]=)\s*(?P<value>\S{1,30})\s*",
    re.ASCII,
)


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

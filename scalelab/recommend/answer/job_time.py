"""The time limit of the recommended job, and the jobs that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import pandas as pd

from scalelab.inputs.numerals import Interval, duration, percent
from scalelab.laws.rows import numbers
from scalelab.recommend.answer.recommendation import Recommendation

_UNMEASURED = 0.1  # of the rest: checkpoints, and what no trial does
_LEAST_S = 600.0
_GRAIN_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTime:
    """How long the recommended job may take.

    Parameters
    ----------
    training_s
        Time of its training steps that is not exceeded with the confidence; infinite
        where no upper end is known.
    evaluation_s
        Time of its evaluations; None: it was not measured, or the steps contain it.
    walltime_s
        The longest time that a job may take on the site; None: not known.
    """

    training_s: float
    confidence: float
    start_up_s: float
    evaluation_s: float | None
    walltime_s: float | None

    @classmethod
    def of(
        cls,
        answer: Recommendation,
        observations: pd.DataFrame,
        walltime_s: float | None,
    ) -> JobTime:
        """Return the time of the chosen row."""
        row = answer.chosen
        start_up_s = numbers(observations, "start_up_s")
        per_sample_s = _evaluation_per_sample_s(observations)
        return cls(
            training_s=_quantile(row.time_s, answer.interval, answer.confidence),
            confidence=answer.confidence,
            start_up_s=float(start_up_s.max(where=start_up_s > 0, initial=0.0)),
            evaluation_s=per_sample_s and per_sample_s * row.samples.value,
            walltime_s=walltime_s,
        )

    @property
    def whole_s(self) -> float:
        """Time of the whole training in one job, in multiples of five minutes."""
        work_s = self.training_s + (self.evaluation_s or 0.0)
        whole_s = self.start_up_s + (1 + _UNMEASURED) * work_s
        if not math.isfinite(whole_s):
            return whole_s
        return max(_LEAST_S, math.ceil(whole_s / _GRAIN_S) * _GRAIN_S)

    @property
    def limit_s(self) -> float | None:
        """Time limit of a job; None: the site's or the queue's."""
        limit_s = min(self.whole_s, self.walltime_s or math.inf)
        return limit_s if math.isfinite(limit_s) else None

    @property
    def num_jobs(self) -> int:
        """Jobs that the training takes, one after the other."""
        if self.walltime_s is None or not self.walltime_s < self.whole_s < math.inf:
            return 1
        useful_s = max(self.walltime_s - self.start_up_s, self.walltime_s / 2)
        return math.ceil((self.whole_s - self.start_up_s) / useful_s)

    def in_words(self) -> str:
        """Say what the limit holds."""
        if not math.isfinite(self.training_s):
            return "No upper end of the training's time is known: see the time limit."
        sure = percent(self.confidence)
        parts = [f"{duration(self.training_s)} of training ({sure})"]
        if self.start_up_s:
            parts.append(f"{duration(self.start_up_s)} to start")
        if self.evaluation_s is not None:
            parts.append(f"{duration(self.evaluation_s)} of evaluation")
        rest = "what was not measured" if self.evaluation_s is None else "checkpoints"
        return f"The time limit holds {', '.join(parts)}, and a tenth more for {rest}."


def _quantile(time_s: Interval, mass: float, confidence: float) -> float:
    """Return the time that is not exceeded with a confidence.

    The logarithm of the time is taken for normal beyond its median.
    """
    normal = NormalDist()
    end, asked = normal.inv_cdf((1 + mass) / 2), normal.inv_cdf(confidence)
    if not math.isfinite(time_s.hi):
        return math.inf
    if asked <= 0 or time_s.hi <= time_s.value:
        return time_s.value
    return float(time_s.value * (time_s.hi / time_s.value) ** (asked / end))


def _evaluation_per_sample_s(observations: pd.DataFrame) -> float | None:
    """Return the seconds of evaluation per training sample; None: it is not known.

    Only trials that saw two evaluations and more tell how often there is one.
    """
    seconds = numbers(observations, "evaluation_s")
    samples = numbers(observations, "num_samples")
    apart = numbers(observations, "evaluation_interval_samples")
    tells = (apart > 0) & (samples >= 2 * apart) & (seconds >= 0)
    return float(seconds[tells].sum() / samples[tells].sum()) if tells.any() else None

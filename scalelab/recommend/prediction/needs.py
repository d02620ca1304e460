"""What training needs: samples, a learning rate, and time beside its steps."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.inputs.numerals import every
from scalelab.inputs.support import Support
from scalelab.inputs.target import Target
from scalelab.laws.convergence.law import BatchCurve, ConvergenceLaw
from scalelab.laws.convergence.rows import is_learnt_so
from scalelab.laws.interval import NUM_DRAWS
from scalelab.laws.rows import CurveKey, numbers
from scalelab.recommend.answer.recommendation import LearningRatePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Start-up and evaluation; 0 where they were not measured apart from steps."""

    start_up_s: float
    evaluation_per_sample_s: float  # of training

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Read the longest start-up, as later trials find their nodes warm."""
        names = ("evaluation_s", "num_samples", "evaluation_interval_samples")
        seconds, samples, apart = (numbers(frame, name) for name in names)
        # who saw one evaluation does not know when the next comes
        tells = (apart > 0) & (samples >= 2 * apart) & (seconds >= 0)
        return cls(
            start_up_s=float(np.nanmax(numbers(frame, "start_up_s"), initial=0.0)),
            evaluation_per_sample_s=seconds[tells].sum() / max(samples[tells].sum(), 1),
        )

    def seconds(self, samples: np.ndarray) -> np.ndarray:
        """Return the seconds beside the steps of training; shape of ``samples``."""
        return self.start_up_s + samples * self.evaluation_per_sample_s

    def by_part(self, samples: float) -> dict[str, float]:
        """Return the seconds of each part that was measured."""
        evaluation_s = samples * self.evaluation_per_sample_s
        parts = {"start-up": self.start_up_s, "evaluation": evaluation_s}
        return {name: float(seconds) for name, seconds in parts.items() if seconds}


def _normalization(frame: pd.DataFrame) -> str:
    seen = numbers(frame, "normalization_batch_size")
    known = np.isfinite(seen)
    for name in ("local_batch_size", "global_batch_size"):
        if known.any() and (seen == numbers(frame, name))[known].all():
            return name
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleNeed:
    """The number of samples that a job needs: stated, or from the convergence law."""

    # The job; with a target its stated length is an upper limit
    job: Job | None
    # The metric to reach; None: the job is its stated length
    target: Target | None
    # The convergence law (None if it cannot be fitted) and its curves for the target
    law: ConvergenceLaw | None
    keys: tuple[CurveKey, ...]
    num_missed: int
    # The batch that a batch-norm statistic is computed over in all rows; else empty
    normalization: str

    @classmethod
    def of(cls, frame: pd.DataFrame, job: Job | None, target: Target | None) -> Self:
        """Decide between the job's stated length and the convergence law.

        ``target`` replaces the target of the job.
        """
        if target is None and job is not None:
            target = job.target
        law = None
        with suppress(FitError):
            law = ConvergenceLaw.fit(frame)
        tried = {} if law is None else _tried(law, target)
        keys = tuple(key for key, curve in tried.items() if curve.num_reached)
        missed = 0 if keys else sum(curve.num_censored for curve in tried.values())
        has_amount = job is not None and job.num_samples(1) is not None
        if target is not None and not keys and not has_amount:
            raise NotIdentifiableError(
                f"the number of samples to {target}", _how_to_measure(law, missed)
            )
        return cls(
            job=job,
            target=target,
            law=law,
            keys=keys,
            num_missed=missed,
            normalization=_normalization(frame),
        )

    @property
    def uses_law(self) -> bool:
        """Whether the number of samples comes from the convergence law."""
        return self.target is not None and bool(self.keys)

    def measured_batches(self) -> tuple[int, ...]:
        """Return the global batches whose convergence was measured."""
        curves = {} if self.law is None else self.law.curves
        used = [curves[key] for key in self.keys or curves]
        return tuple(sorted({int(b) for curve in used for b in curve.measured}))

    def draws(self, asked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Draw the samples that a run needs, and whether it reaches the target.

        Returns
        -------
        samples : ndarray, shape (n_draws, n_configurations)
            NaN where no curve supports a batch. The upper limit of the job is not
            applied, see :meth:`within_cap`.
        reached : ndarray of bool, shape (n_draws, n_configurations)
        rules
            The learning-rate rule that needs fewest samples, for each configuration.
        """
        if not self.uses_law or self.law is None:
            amounts = [self._amount(int(b)) for b in asked["global_batch_size"]]
            samples = np.tile(np.array(amounts, dtype=float), (NUM_DRAWS, 1))
            return samples, np.ones(samples.shape, dtype=bool), [""] * len(asked)
        batches = asked["global_batch_size"].to_numpy(float)
        stack = np.array([self._drawn(key, asked) for key in self.keys])
        medians = np.median(stack, axis=1)
        best = np.where(np.isnan(medians), np.inf, medians).argmin(axis=0)
        reached = np.array([self.law.reaches(key, batches) for key in self.keys])
        each = np.arange(len(batches))
        rules = [str(dict(self.keys[k]).get("lr_rule", "")) for k in best]
        return stack[best, :, each].T, reached[best, :, each].T, rules

    def _drawn(self, key: CurveKey, asked: pd.DataFrame) -> np.ndarray:
        assert self.law is not None
        batches = asked["global_batch_size"].to_numpy(float)
        name = self.normalization
        seen = asked[name].to_numpy(float) if name else None
        known = self.law.curves[key].support(batches) != Support.NOT_MEASURED
        known = known & is_learnt_so(key, asked)
        return np.where(known, self.law.sample(key, batches, seen), np.nan)

    def within_cap(self, samples: np.ndarray, batch: Sequence[int]) -> np.ndarray:
        """Tell which draws are within the job's stated length; same shape."""
        job = self.job if self.uses_law else None
        amounts = [None if job is None else job.num_samples(each) for each in batch]
        caps = np.array([np.inf if a is None else float(a) for a in amounts])
        return np.asarray(samples <= caps)

    def _amount(self, batch: int) -> float:
        amount = None if self.job is None else self.job.num_samples(batch)
        if amount is None:
            raise SpecError(
                "There is no job to recommend for: nothing says how long it is. Add "
                "'job: {epochs: 90, samples_per_epoch: 50000}' to the experiment, or "
                "say it with the question: 'scalelab recommend RUN --epochs 90 "
                "--samples-per-epoch 50000' (or --samples, or --steps), in Python "
                "job={'samples': 4500000}."
            )
        return float(amount)


def _tried(law: ConvergenceLaw, target: Target | None) -> dict[CurveKey, BatchCurve]:
    if target is None:
        return {}
    wanted = {
        "target_metric": target.metric,
        "metric_mode": str(target.mode),
        "target_value": target.value,
    }
    return {
        key: curve
        for key, curve in law.curves.items()
        if all(dict(key).get(name, value) == value for name, value in wanted.items())
    }


def _how_to_measure(law: ConvergenceLaw | None, num_missed: int) -> str:
    otherwise = "or say how long the job is (epochs, steps, samples)."
    if num_missed:
        return (
            f"{every(num_missed, 'run')} with this target stopped before it. Let them "
            f"train longer, ask for a target they came to, {otherwise}"
        )
    measured = sorted(
        {
            f"{values.get('target_metric')} "
            f"{'>=' if values.get('metric_mode') == 'max' else '<='} "
            f"{values.get('target_value')}"
            for values in map(dict, law.curves if law else ())
        }
    )
    seen = f"Measured targets: {', '.join(measured)}. " if measured else ""
    return (
        f"{seen}Run convergence trials with this target over the global batches in "
        f"question, {otherwise}"
    )


def learning_rate(
    frame: pd.DataFrame, global_batch_size: int, rule: str = ""
) -> LearningRatePlan | None:
    """Return the learning rate at a batch: measured, or scaled by its rule.

    It is scaled from the measured rate at the nearest batch.
    """
    rate, batch = numbers(frame, "learning_rate"), numbers(frame, "global_batch_size")
    known = np.isfinite(rate) & (batch > 0)
    if not known.any() or "lr_rule" not in frame.columns:
        return None
    rules = frame["lr_rule"].fillna("none").astype(str)
    wanted = rule or str(rules[known].mode().iloc[0])
    same = np.flatnonzero(known & (rules == wanted))
    if not len(same):
        return None
    nearest = same[np.abs(np.log(batch[same] / global_batch_size)).argmin()]
    if wanted == LearningRateRule.STALENESS and len(np.unique(rate[same])) > 1:
        return None
    value, at_batch = float(rate[nearest]), int(batch[nearest])
    if at_batch != global_batch_size:
        if wanted not in list(LearningRateRule):
            return None
        value = scaled_rate(
            value,
            rule=LearningRateRule(wanted),
            at_batch=at_batch,
            global_batch_size=global_batch_size,
        )
    return LearningRatePlan(rule=wanted, value=value)

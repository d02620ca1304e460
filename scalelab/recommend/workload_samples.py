"""How many training samples the job needs at each global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.trial import Target
from scalelab.laws.convergence import ConvergenceLaw
from scalelab.laws.interval import NUM_DRAWS
from scalelab.laws.rows import CurveKey
from scalelab.laws.support import Support


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleNeed:
    """Where the job's number of samples comes from.

    Parameters
    ----------
    job
        The job; its amount is a cap where there is a target.
    target
        The metric to reach; None: the amount is the job.
    law, keys
        The convergence law, None without one, and its curves for the target.
    """

    job: Job | None
    target: Target | None
    law: ConvergenceLaw | None
    keys: tuple[CurveKey, ...]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, job: Job | None, target: Target | None
    ) -> SampleNeed:
        """Decide between the job's own amount and the measured convergence.

        ``target`` replaces the job's own.

        Raises
        ------
        NotIdentifiableError
            The job is a target that was not measured, and has no amount.
        """
        if target is None and job is not None:
            target = job.target
        law = _convergence(frame)
        keys = () if law is None else _matching(law, target)
        has_amount = job is not None and job.num_samples(1) is not None
        if target is not None and not keys and not has_amount:
            measured = (
                [] if law is None else sorted({_target_text(k) for k in law.curves})
            )
            seen = f"Measured targets: {', '.join(measured)}. " if measured else ""
            raise NotIdentifiableError(
                f"samples to {target}",
                f"{seen}Run convergence trials with this target over the global "
                "batches in question, or say how long the job is (epochs, steps, "
                "samples).",
            )
        return cls(job=job, target=target, law=law, keys=keys)

    @property
    def uses_law(self) -> bool:
        """Samples follow the measured convergence."""
        return self.target is not None and bool(self.keys)

    def measured_batches(self) -> tuple[int, ...]:
        """Return the global batches whose convergence was measured."""
        if self.law is None:
            return ()
        curves = [self.law.curves[key] for key in self.keys or self.law.curves]
        return tuple(sorted({int(b) for curve in curves for b in curve.measured}))

    def draws(self, batch: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Draw samples, shape (n_draws, n_batches), and name the rule that needs least.

        NaN where nothing supports a batch. The job's cap is not applied, see
        :meth:`within_cap`.
        """
        if not self.uses_law or self.law is None:
            amounts = [self._amount(b) for b in batch]
            return np.tile(np.array(amounts, dtype=float), (NUM_DRAWS, 1)), [""] * len(
                batch
            )
        batches = np.array(batch, dtype=float)
        every = []
        for key in self.keys:
            drawn = self.law.sample(key, batches)
            known = self.law.curves[key].support(batches) != Support.UNSUPPORTED
            every.append(np.where(known, drawn, np.nan))
        stack = np.array(every)
        medians = np.median(stack, axis=1)
        best = np.where(np.isnan(medians), np.inf, medians).argmin(axis=0)
        chosen = stack[best, :, np.arange(len(batches))].T
        rules = [str(dict(self.keys[k]).get("lr_rule", "")) for k in best]
        return np.asarray(chosen), rules

    def within_cap(self, samples: np.ndarray, batch: Sequence[int]) -> np.ndarray:
        """Tell which draws reach the target within the job's amount; same shape."""
        caps = np.array([self._cap(b) for b in batch]) if self.uses_law else np.inf
        return np.asarray(samples <= caps)

    def _amount(self, batch: int) -> float:
        amount = None if self.job is None else self.job.num_samples(batch)
        if amount is None:
            raise SpecError("The job does not say how long it is. Give it an amount.")
        return float(amount)

    def _cap(self, batch: int) -> float:
        amount = None if self.job is None else self.job.num_samples(batch)
        return float("inf") if amount is None else float(amount)


def _convergence(frame: pd.DataFrame) -> ConvergenceLaw | None:
    try:
        return ConvergenceLaw.fit(frame)
    except FitError:
        return None


def _matching(law: ConvergenceLaw, target: Target | None) -> tuple[CurveKey, ...]:
    if target is None:
        return ()
    wanted = {
        "target_metric": target.metric,
        "metric_mode": str(target.mode),
        "target_value": target.value,
    }
    return tuple(
        key
        for key, curve in law.curves.items()
        if curve.num_reached
        and all(dict(key).get(name, value) == value for name, value in wanted.items())
    )


def _target_text(key: CurveKey) -> str:
    values = dict(key)
    sign = ">=" if values.get("metric_mode") == "max" else "<="
    return f"{values.get('target_metric')} {sign} {values.get('target_value')}"

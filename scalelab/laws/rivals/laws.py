"""Rival laws: published step-time laws with the interface of :class:`StepTimeLaw`.

A rival law predicts every configuration it is asked about, as its authors' own tool
does. Its interval is the scatter of the measured points around the fit, and does not
cover the error of the formula. The formulas stand in
:mod:`scalelab.laws.rivals.forms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.wording import Option
from scalelab.laws.interval import NUM_DRAWS, SEED
from scalelab.laws.rivals import forms
from scalelab.laws.rivals.boosted_trees import BoostedTrees
from scalelab.laws.rivals.forms import TINY, Fitted, RivalForm
from scalelab.laws.rows import CurveKey
from scalelab.laws.step_time.curve import FittedCurve
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.support import Coverage


@dataclass(frozen=True, kw_only=True, slots=True)
class RivalCurve(FittedCurve):
    """A rival law fitted to one curve; it doubts no row and has no gaps."""

    fitted: Fitted
    scatter: float

    @classmethod
    def fit(cls, form: RivalForm, frame: pd.DataFrame) -> RivalCurve:
        """Fit a formula or a regressor to the rows of one curve."""
        points = Points.of(frame)
        passes = np.exp(points.log_time) / points.at.accumulation
        fitted = form.learn(passes, points.at)
        residuals = np.log(passes) - np.log(np.maximum(fitted.time(points.at), TINY))
        used = sum(value > TINY for value in fitted.coefficients.values())
        freedom = max(len(residuals) - used, 1)
        return cls(
            fitted=fitted,
            scatter=float(np.sqrt((residuals**2).sum() / freedom))
            if used
            else float(residuals.std()),
            points=points,
            coverage=Coverage.of(frame, frozenset()),
            doubted=pd.DataFrame(columns=["step_time_s", "predicted_s"]),
        )

    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return one normal distribution around each fitted log step time (s)."""
        at = Configurations.of(frame, self.points.batch_unit)
        passes = np.maximum(self.fitted.time(at), TINY)
        middle = np.log(passes * at.accumulation * self.points.time_unit_s)
        return Mixture(
            weights=np.ones((1, 1)),
            means=middle[None],
            variances=np.full((1, len(middle)), self.scatter**2),
        )

    def log_draws(self, frame: pd.DataFrame) -> np.ndarray:
        """Draw log step times in seconds, shape (n_draws, n_configurations)."""
        middle = self.mixture(frame).mean
        noise = np.random.default_rng(SEED).standard_normal((NUM_DRAWS, len(middle)))
        return np.asarray(middle + self.scatter * noise)

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return the coefficients, in units of the curve's typical pass and batch."""
        unknown = float("nan")
        rows = [
            (name, value, unknown, unknown, "relative", True, "")
            for name, value in self.fitted.coefficients.items()
        ]
        columns = ["name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)


class RivalLaw(StepTimeLaw):
    """A law that fits the same formula, or regressor, to each curve."""

    form: ClassVar[type[RivalForm]]

    @classmethod
    def _fit_curves(
        cls, frames: Mapping[CurveKey, pd.DataFrame], prior: StepTimePrior
    ) -> Mapping[CurveKey, FittedCurve]:
        return {key: RivalCurve.fit(cls.form(), frame) for key, frame in frames.items()}

    @staticmethod
    def _middle(run: Mixture) -> np.ndarray:
        return run.quantile(0.5)


class AmdahlLaw(RivalLaw):
    """Amdahl's law, times a straight line in the local batch."""

    name = "amdahl"
    form = forms.Amdahl
    reference = "t = (a + b1 b) (1 + sigma (n-1)) (Amdahl 1967)"


class UslLaw(RivalLaw):
    """Gunther's universal scalability law, times a straight line in the local batch."""

    name = "usl"
    form = forms.Usl
    reference = "t = (a + b1 b) (1 + sigma (n-1) + kappa n (n-1)) (Gunther 2007)"


class PowerLaw(RivalLaw):
    """A power of the number of devices, times a straight line in the local batch."""

    name = "power"
    form = forms.Power
    reference = "t = (a + b1 b) n^c"


class PolluxLaw(RivalLaw):
    """The throughput model of Pollux; its goodput also has a statistical part."""

    name = "pollux"
    form = forms.Pollux
    reference = (
        "t = (C^g + S^g)^(1/g), S = alpha + beta (n-2) per tier (Qiao et al. 2021)"
    )


class XgboostLaw(RivalLaw):
    """Gradient-boosted trees, without any formula."""

    name = "xgboost"
    form = BoostedTrees
    reference = "gradient-boosted trees on log devices, nodes and batches"


LAWS: Mapping[str, type[StepTimeLaw]] = MappingProxyType(
    {
        law.name: law
        for law in (StepTimeLaw, AmdahlLaw, UslLaw, PowerLaw, PolluxLaw, XgboostLaw)
    }
)
"""Step-time laws by the name that ``--law`` takes; the default comes first."""


def law_named(name: str) -> type[StepTimeLaw]:
    """Return a step-time law by name."""
    if name not in LAWS:
        raise SpecError(
            f"{Option('law', name)} is unknown. Choose one of {', '.join(LAWS)}."
        )
    return LAWS[name]

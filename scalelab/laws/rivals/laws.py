"""Published step-time laws behind the interface of :class:`StepTimeLaw`.

They answer wherever they are asked, as their authors' tools do; their intervals are
those of the scatter around the fit, and say nothing about the error of the form. The
formulas stand in :mod:`scalelab.laws.rivals.forms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.laws.interval import NUM_DRAWS, SEED
from scalelab.laws.rivals import forms as rival_forms
from scalelab.laws.rivals import learners as rival_learners
from scalelab.laws.rivals.forms import Fitted, RivalForm
from scalelab.laws.rows import CurveKey
from scalelab.laws.step_time.law import CurveModel, StepTimeLaw
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import NAMES, Configurations, Terms
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.support import Coverage, Gap

_TINY = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class RivalCurve:
    """A form fitted to one curve; implements :class:`CurveModel`."""

    fitted: Fitted
    scatter: float
    points: Points
    coverage: Coverage

    @classmethod
    def fit(cls, form: RivalForm, frame: pd.DataFrame) -> RivalCurve:
        """Fit a form to the rows of one curve."""
        points = Points.of(frame)
        micro = np.exp(points.log_time) / points.at.accumulation
        fitted = form.learn(micro, points.at)
        residuals = np.log(micro) - np.log(np.maximum(fitted(points.at), _TINY))
        used = sum(value > _TINY for value in fitted.coefficients.values())
        freedom = max(len(residuals) - used, 1)
        return cls(
            fitted=fitted,
            scatter=float(np.hypot(residuals.std(), points.spread))
            if not used
            else float(np.sqrt((residuals**2).sum() / freedom + points.spread**2)),
            points=points,
            coverage=Coverage(at=Configurations.of(frame), informed=frozenset(NAMES)),
        )

    @property
    def spread(self) -> float:
        """Standard deviation of log step time between repeats."""
        return self.points.spread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """None: these laws never refuse."""
        return ()

    def blocking(self, frame: pd.DataFrame) -> tuple[Gap, ...]:
        """None, likewise."""
        return ()

    def support(self, frame: pd.DataFrame) -> np.ndarray:
        """Return what each prediction rests on, see :class:`Support`."""
        return self.coverage.support(Configurations.of(frame))

    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return one normal around the fitted log step times (s)."""
        at = Configurations.of(frame, self.points.batch_unit)
        micro = np.maximum(self.fitted(at), _TINY)
        middle = np.log(micro * at.accumulation * self.points.time_unit_s)
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

    def terms(self, frame: pd.DataFrame) -> Terms | None:
        """None: these laws name no physical parts."""
        return None

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return the coefficients in units of the typical micro-step and batch."""
        unknown = float("nan")
        rows = [
            (name, value, unknown, unknown, "relative", True, "")
            for name, value in self.fitted.coefficients.items()
        ]
        columns = ["name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)


class RivalLaw(StepTimeLaw):
    """One published form per curve."""

    form: ClassVar[type[RivalForm]]

    @classmethod
    def _fit_curves(
        cls, frames: Mapping[CurveKey, pd.DataFrame], prior: StepTimePrior
    ) -> Mapping[CurveKey, CurveModel]:
        return {key: RivalCurve.fit(cls.form(), frame) for key, frame in frames.items()}

    @staticmethod
    def _middle(run: Mixture) -> np.ndarray:
        return run.quantile(0.5)


class AmdahlLaw(RivalLaw):
    """Amdahl's law with a local batch."""

    name = "amdahl"
    form = rival_forms.Amdahl
    reference = "t = (a + b1 b) (1 + sigma (n-1)) (Amdahl 1967)"


class UslLaw(RivalLaw):
    """Gunther's universal scalability law with a local batch."""

    name = "usl"
    form = rival_forms.Usl
    reference = "t = (a + b1 b) (1 + sigma (n-1) + kappa n (n-1)) (Gunther 2007)"


class PowerLaw(RivalLaw):
    """A power of the number of devices."""

    name = "power"
    form = rival_forms.Power
    reference = "t = (a + b1 b) n^c"


class ErnestLaw(RivalLaw):
    """Ernest's four features."""

    name = "ernest"
    form = rival_forms.Ernest
    reference = "t = a + b1 b + b2 log n + b3 (n-1) (Venkataraman et al. 2016)"


class ErnestNodesLaw(RivalLaw):
    """Ernest's features for devices and again for nodes."""

    name = "ernest_nodes"
    form = rival_forms.ErnestNodes
    reference = "Ernest, and b4 [m>1] + b5 log m + b6 (m-1) for m nodes"


class PaleoLaw(RivalLaw):
    """Compute and a ring of the slowest link."""

    name = "paleo"
    form = rival_forms.Paleo
    reference = "t = a + b1 b + 2 (n-1)/n S per tier (Qi et al. 2017)"


class PolluxLaw(RivalLaw):
    """The throughput half of Pollux' goodput."""

    name = "pollux"
    form = rival_forms.Pollux
    reference = (
        "t = (C^g + S^g)^(1/g), S = alpha + beta (n-2) per tier (Qiao et al. 2021)"
    )


class MedianLaw(RivalLaw):
    """Five formulas and no choice between them."""

    name = "median"
    form = rival_forms.Median
    reference = "median of ernest_nodes, paleo, pollux, power, last_efficiency"


class LinearScalingLaw(RivalLaw):
    """The hope: every device adds as much as the first."""

    name = "linear"
    form = rival_forms.LinearScaling
    reference = "t(n) = t of the fewest devices measured"


class LastEfficiencyLaw(RivalLaw):
    """The naive rule: the last measured efficiency stays."""

    name = "last_efficiency"
    form = rival_forms.LastEfficiency
    reference = "t(n) = t of the most devices measured"


class TreesLaw(RivalLaw):
    """XGBoost on its own."""

    name = "xgboost"
    form = rival_learners.Trees
    reference = "gradient-boosted trees on log devices, nodes and batches"


class ForestLaw(RivalLaw):
    """A random forest on its own."""

    name = "forest"
    form = rival_learners.Forest
    reference = "random forest on log devices, nodes and batches"


class ProcessLaw(RivalLaw):
    """A Gaussian process on its own."""

    name = "gp"
    form = rival_learners.GaussianProcess
    reference = "Gaussian process on log devices, nodes and batches"


LAWS: Mapping[str, type[StepTimeLaw]] = MappingProxyType(
    {
        law.name: law
        for law in (
            StepTimeLaw,
            AmdahlLaw,
            UslLaw,
            PowerLaw,
            ErnestLaw,
            ErnestNodesLaw,
            PaleoLaw,
            PolluxLaw,
            MedianLaw,
            LinearScalingLaw,
            LastEfficiencyLaw,
            TreesLaw,
            ForestLaw,
            ProcessLaw,
        )
    }
)


def law_named(name: str) -> type[StepTimeLaw]:
    """Return a step-time law by name.

    Raises
    ------
    SpecError
        No law has this name; lists those that exist.
    """
    if name not in LAWS:
        raise SpecError(f"law={name!r} is unknown. Choose one of {', '.join(LAWS)}.")
    return LAWS[name]

"""Other step-time laws, published ones, with the interface of :class:`StepTimeLaw`.

Such a law predicts every configuration it is asked about, as its authors' own tool
does. Its interval is the scatter of the measured points around the fit, and does not
cover the error of the formula (:mod:`scalelab.laws.formulas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.wording import Option
from scalelab.laws import formulas
from scalelab.laws.formulas import TINY, Fitted, Learner
from scalelab.laws.interval import NUM_DRAWS, SEED
from scalelab.laws.rows import CurveKey
from scalelab.laws.step_time.curve import FittedCurve
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points, spread_out
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.support import Coverage

_MOST_ROWS = 250  # that trees are fitted to; a longer table is sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCurve(FittedCurve):
    """Another law fitted to one curve; it doubts no row and has no gaps."""

    fitted: Fitted
    scatter: float

    @classmethod
    def fit(cls, learn: Learner, frame: pd.DataFrame) -> Self:
        """Fit a formula or a regressor to the rows of one curve."""
        points = Points.of(frame)
        passes = np.exp(points.log_time) / points.at.accumulation
        fitted = learn(passes, points.at)
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


class PublishedLaw(StepTimeLaw):
    """A law that fits the same formula, or regressor, to each curve."""

    learn: ClassVar[staticmethod[[np.ndarray, Configurations], Fitted]]

    @classmethod
    def _fit_curves(
        cls, frames: Mapping[CurveKey, pd.DataFrame], prior: StepTimePrior
    ) -> Mapping[CurveKey, FittedCurve]:
        return {key: PublishedCurve.fit(cls.learn, frames[key]) for key in frames}

    @staticmethod
    def _middle(run: Mixture) -> np.ndarray:
        return run.quantile(0.5)


class AmdahlLaw(PublishedLaw):
    """Amdahl's law, times a straight line in the local batch."""

    name = "amdahl"
    learn = staticmethod(formulas.amdahl)
    reference = "t = (a + b1 b) (1 + sigma (n-1)) (Amdahl 1967)"


class UslLaw(PublishedLaw):
    """Gunther's universal scalability law, times a straight line in the local batch."""

    name = "usl"
    learn = staticmethod(formulas.usl)
    reference = "t = (a + b1 b) (1 + sigma (n-1) + kappa n (n-1)) (Gunther 2007)"


class PowerLaw(PublishedLaw):
    """A power of the number of devices, times a straight line in the local batch."""

    name = "power"
    learn = staticmethod(formulas.power)
    reference = "t = (a + b1 b) n^c"


class PolluxLaw(PublishedLaw):
    """The throughput model of Pollux; its goodput also has a statistical part."""

    name = "pollux"
    learn = staticmethod(formulas.pollux)
    reference = (
        "t = (C^g + S^g)^(1/g), S = alpha + beta (n-2) per tier (Qiao et al. 2021)"
    )


def _boosted_trees(time: np.ndarray, at: Configurations) -> Fitted:
    """Fit 150 small trees to at most 250 passes."""
    # imported here: few answers need it, and it loads slowly
    from xgboost import XGBRegressor

    trees = XGBRegressor(
        n_estimators=150,
        max_depth=4,
        learning_rate=0.1,
        subsample=0.9,
        min_child_weight=1,
        reg_lambda=1e-3,
        n_jobs=1,
        random_state=0,
    )

    def features(at: Configurations) -> np.ndarray:
        n, m, b = at.world_size, at.num_nodes, at.samples
        return np.asarray(np.log(np.column_stack([n, m, n / m, b, n * b])))

    chosen = spread_out(len(time), _MOST_ROWS)
    trees.fit(features(at)[chosen], np.log(time)[chosen])
    return Fitted(
        lambda asked: np.exp(trees.predict(features(asked)).astype(float)), {}
    )


class XgboostLaw(PublishedLaw):
    """Gradient-boosted trees, which know no physics: constant beyond what they saw."""

    name = "xgboost"
    learn = staticmethod(_boosted_trees)
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

"""One fitted curve: predictions of the ensemble, parts of the rings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.laws.interval import NUM_DRAWS, SEED
from scalelab.laws.rows import CurveKey
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations, Terms
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.residual import ENOUGH_POINTS, Residual
from scalelab.laws.step_time.ring_terms import RingTerms
from scalelab.laws.step_time.shapes import NUM_PARAMETERS
from scalelab.laws.support import Coverage, Gap

# log error per doubling beyond the measured range, of world size and of local batch,
# that published curves of left-out machines show on top of what the ensemble expects
_DRIFT = np.array([0.06, 0.04])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The law fitted to one curve.

    Parameters
    ----------
    points, coverage
        What it was fitted to.
    ensemble
        What predicts.
    residual
        What a long history adds inside the measured range.
    gradient_bytes
        Bytes per gradient exchange where every row agrees, else NaN.
    """

    points: Points
    coverage: Coverage
    ensemble: Ensemble
    residual: Residual | None
    gradient_bytes: float

    @classmethod
    def fit(cls, key: CurveKey, frame: pd.DataFrame, prior: StepTimePrior) -> Curve:
        """Fit the rows of one curve, see :func:`step_time_rows`."""
        points = Points.of(frame)
        sizes = frame["gradient_bytes"].dropna().unique()
        ensemble = Ensemble.fit(points, prior.about(key, points.batch_unit))
        return cls(
            points=points,
            coverage=Coverage(
                at=Configurations.of(frame), informed=prior.determined_for(key)
            ),
            ensemble=ensemble,
            residual=_residual(points, ensemble),
            gradient_bytes=float(sizes[0]) if len(sizes) == 1 else float("nan"),
        )

    @cached_property
    def rings(self) -> RingTerms:
        """The physical terms; drawn when first asked for, predictions need none."""
        return RingTerms.fit(self.points)

    def support(self, frame: pd.DataFrame) -> np.ndarray:
        """Return what each prediction rests on, see :class:`Support`."""
        return self.coverage.support(Configurations.of(frame))

    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return what is believed about the log expected step times (s)."""
        at = Configurations.of(frame, self.points.batch_unit)
        drift = (self._drift(frame) ** 2).sum(axis=1)
        return self.ensemble.mixture(at).moved(self._offset(frame, at), drift)

    def log_draws(self, frame: pd.DataFrame) -> np.ndarray:
        """Draw log expected step times (s) together, (n_draws, n_configurations)."""
        at = Configurations.of(frame, self.points.batch_unit)
        normals = _normals(len(frame) + NUM_PARAMETERS + 2)
        draws = normals[:, :2] @ self._drift(frame).T
        draws += self.ensemble.draws(at, normals[:, 2:])
        return np.asarray(draws + self._offset(frame, at))

    def _offset(self, frame: pd.DataFrame, at: Configurations) -> np.ndarray:
        """Return the log unit of time and, inside the measured range, the residual."""
        offset = np.full(len(frame), np.log(self.points.time_unit_s))
        if self.residual is None:
            return offset
        inside = self.coverage.surrounds(Configurations.of(frame))
        return np.asarray(offset + self.residual.correction(at, inside))

    def _drift(self, frame: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.coverage.distance(Configurations.of(frame)) * _DRIFT)

    def terms(self, frame: pd.DataFrame) -> Terms:
        """Split the step time into its parts, seconds, by draw and configuration."""
        return self.rings.split(Configurations.of(frame, self.points.batch_unit))

    @property
    def spread(self) -> float:
        """Standard deviation of log step time between repeats."""
        return self.points.spread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the measured configurations cannot determine."""
        return self.coverage.gaps()

    def blocking(self, frame: pd.DataFrame) -> tuple[Gap, ...]:
        """Return the gaps that leave some configuration without an answer."""
        return self.coverage.blocking(Configurations.of(frame))

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
        return self.rings.table(interval, self.gaps, self.gradient_bytes)


def _residual(points: Points, ensemble: Ensemble) -> Residual | None:
    unseen = points.take(ensemble.unseen)
    if len(unseen) < ENOUGH_POINTS:
        return None
    predicted = ensemble.mixture(unseen.at).mean
    return Residual.fit(unseen.at, unseen.log_time - predicted)


def _normals(columns: int) -> np.ndarray:
    """Return standard normal draws whose every column has exact quantiles."""
    rng = np.random.default_rng(SEED + 1)
    levels = ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS)
    return np.column_stack([rng.permutation(levels) for _ in range(columns)])

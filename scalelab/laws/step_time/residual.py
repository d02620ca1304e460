"""A residual correction by XGBoost, for curves with very many points.

The ensemble is fitted to a limited number of a curve's points. Where many more were
measured, boosted trees are fitted to its errors at the other points. Cross-validation
measures how much of this correction holds at new configurations, and shrinks it
accordingly. Beyond the measured range trees are constant, so no correction is applied
there: an extrapolation is exactly that of the ensemble.

References
----------
Chen and Guestrin 2016, *XGBoost: a scalable tree boosting system*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scalelab.laws.step_time.physics import Configurations

if TYPE_CHECKING:
    from xgboost import XGBRegressor

ENOUGH_POINTS = 1000
"""Least number of points beyond those of the ensemble. With fewer, the trees would fit
noise, and loading XGBoost would take longer than everything else."""
_NUM_FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """Boosted trees on the log error of the ensemble.

    Parameters
    ----------
    trees
        Fitted to the points that the ensemble was not fitted to.
    share
        Share of the correction that holds at new configurations, in [0, 1].
    """

    trees: XGBRegressor
    share: float

    @classmethod
    def fit(cls, at: Configurations, errors: np.ndarray) -> Residual | None:
        """Fit log measured over predicted; None if cross-validation gains nothing."""
        if len(errors) < ENOUGH_POINTS:
            return None
        features = _features(at)
        fold = np.random.default_rng(0).permutation(len(errors)) % _NUM_FOLDS
        left = np.empty(len(errors))
        for held in range(_NUM_FOLDS):
            known = fold != held
            trees = _trees().fit(features[known], errors[known])
            left[~known] = errors[~known] - trees.predict(features[~known])
        share = 1 - float((left**2).sum() / (errors**2).sum())
        if share <= 0:
            return None
        return cls(trees=_trees().fit(features, errors), share=share)

    def correction(self, at: Configurations, inside: np.ndarray) -> np.ndarray:
        """Return what to add to the log time; zero where not ``inside``, shape (n,)."""
        correction = np.zeros(len(inside))
        if inside.any():
            predicted = self.trees.predict(_features(at.take(np.flatnonzero(inside))))
            correction[inside] = self.share * predicted
        return correction


def _trees() -> XGBRegressor:
    # imported here: short sweeps do not need it, and it loads slowly
    from xgboost import XGBRegressor

    return XGBRegressor(
        n_estimators=60,
        max_depth=3,
        learning_rate=0.1,
        min_child_weight=3,
        reg_lambda=3.0,
        n_jobs=1,
        random_state=0,
    )


def _features(at: Configurations) -> np.ndarray:
    columns = (at.world_size, at.num_nodes, at.samples, at.accumulation)
    per_node = at.world_size / at.num_nodes
    return np.asarray(np.log(np.column_stack([*columns, per_node])))

"""What XGBoost learns from a long history, inside the measured range only.

The ensemble is conditioned on a limited number of a curve's points. Where many more
were measured, boosted trees learn what it leaves over at the others, which it has not
seen. How much of that carries over to new configurations is measured by
cross-validation and shrinks the correction; beyond the measured range trees are
constant and know nothing, so there is no correction there: an extrapolation is that of
the ensemble, exactly.

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
"""Points beyond those of the ensemble; with fewer, loading XGBoost costs
more time than the whole law and its trees follow the noise."""
_NUM_FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """Boosted trees on the log error of the ensemble.

    Parameters
    ----------
    trees
        Fitted to the points the ensemble has not seen.
    share
        Of the correction that carries over to new configurations, in [0, 1].
    """

    trees: XGBRegressor
    share: float

    @classmethod
    def fit(cls, at: Configurations, errors: np.ndarray) -> Residual | None:
        """Learn log measured over predicted; None where too little carries over."""
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
    # the analysis of short sweeps must not pay for loading it
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

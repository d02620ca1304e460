"""Gradient-boosted trees as a law of their own: a regressor that knows no physics.

A regressor sees the logarithms of devices, nodes, devices per node, local batch and
devices times local batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from scalelab.laws.rivals.forms import Fitted, RivalForm
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import spread_out

_MOST_ROWS = 250  # fitted; a longer table is sampled


class BoostedTrees(RivalForm):
    """Gradient-boosted trees (XGBoost): constant beyond the measured range."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
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
        chosen = spread_out(len(time), _MOST_ROWS)
        trees.fit(_features(at)[chosen], np.log(time)[chosen])
        return Fitted(partial(_times, trees), {})


def _times(trees: Any, at: Configurations) -> np.ndarray:
    return np.asarray(np.exp(trees.predict(_features(at)).astype(float)))


def _features(at: Configurations) -> np.ndarray:
    n, m, b = at.world_size, at.num_nodes, at.samples
    return np.asarray(np.log(np.column_stack([n, m, n / m, b, n * b])))

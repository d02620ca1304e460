"""Gradient-boosted trees as a law of their own: a regressor that knows no physics.

A regressor sees the logarithms of devices, nodes, devices per node, local batch and
devices times local batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalelab.laws.rivals.forms import Fitted, RivalForm
from scalelab.laws.step_time.physics import Configurations

_MOST_ROWS = 250  # fitted; a longer table is sampled


@dataclass(frozen=True, slots=True)
class Regression:
    """A regressor of log time that was fitted; implements :class:`Fitted`."""

    regressor: Any

    @classmethod
    def fit(cls, regressor: Any, time: np.ndarray, at: Configurations) -> Regression:
        """Fit a regressor with scikit-learn's interface to at most 250 passes."""
        chosen = np.arange(len(time))
        if len(chosen) > _MOST_ROWS:
            order = np.random.default_rng(0).permutation(len(time))
            chosen = np.sort(order[:_MOST_ROWS])
        return cls(regressor.fit(_features(at)[chosen], np.log(time)[chosen]))

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Return no coefficients: those of a regressor have no names."""
        return {}

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        return np.asarray(np.exp(self.regressor.predict(_features(at)).astype(float)))


class BoostedTrees(RivalForm):
    """Gradient-boosted trees (XGBoost): constant beyond the measured range."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Fit 150 small trees to the passes."""
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
        return Regression.fit(trees, time, at)


def _features(at: Configurations) -> np.ndarray:
    n, m, b = at.world_size, at.num_nodes, at.samples
    return np.asarray(np.log(np.column_stack([n, m, n / m, b, n * b])))

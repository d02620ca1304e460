"""Learners that know nothing of networks, behind the interface of the formulas.

They see the logarithms of devices, nodes, devices per node, local and global batch.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalelab.laws.rivals.forms import Fitted, RivalForm
from scalelab.laws.step_time.physics import Configurations

_MOST_ROWS = 250  # of a Gaussian process, whose cost grows with their cube


@dataclass(frozen=True, slots=True)
class Regression:
    """A fitted regressor of log time; implements :class:`Fitted`."""

    regressor: Any

    @property
    def coefficients(self) -> Mapping[str, float]:
        """None: they have no names."""
        return {}

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        return np.asarray(np.exp(self.regressor.predict(_features(at)).astype(float)))


class Learner(RivalForm):
    """A regressor of log time."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Return the fitted regressor."""
        features, chosen = _features(at), np.arange(len(time))
        if len(chosen) > _MOST_ROWS:
            order = np.random.default_rng(0).permutation(len(time))
            chosen = np.sort(order[:_MOST_ROWS])
        with warnings.catch_warnings():
            # of a process whose scale lies at a bound: it is still the best found
            warnings.simplefilter("ignore", UserWarning)
            fitted = self.regressor().fit(features[chosen], np.log(time)[chosen])
        return Regression(fitted)

    @abstractmethod
    def regressor(self) -> Any:
        """Return the regressor, not fitted; its library is imported here."""


class Trees(Learner):
    """Gradient-boosted trees (XGBoost): flat beyond the measured range."""

    def regressor(self) -> Any:
        """Return 150 small trees."""
        from xgboost import XGBRegressor

        return XGBRegressor(
            n_estimators=150,
            max_depth=4,
            learning_rate=0.1,
            subsample=0.9,
            min_child_weight=1,
            reg_lambda=1e-3,
            n_jobs=1,
            random_state=0,
        )


class Forest(Learner):
    """A random forest: flat beyond the measured range."""

    def regressor(self) -> Any:
        """Return 100 trees."""
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(100, random_state=0)


class GaussianProcess(Learner):
    """A Gaussian process: a plane, and a smooth departure from it."""

    def regressor(self) -> Any:
        """Return the process over features of equal scale."""
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        kernel = DotProduct() + RBF(2.0, (0.3, 30)) + WhiteKernel(1e-2, (1e-4, 0.5))
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        return make_pipeline(StandardScaler(), process)


def _features(at: Configurations) -> np.ndarray:
    n, m, b = at.world_size, at.num_nodes, at.samples
    return np.asarray(np.log(np.column_stack([n, m, n / m, b, n * b])))

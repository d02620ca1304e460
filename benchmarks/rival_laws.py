"""Published laws that only benchmarks compare with; ``--law`` offers five others.

They have the interface of :class:`scalelab.laws.rivals.laws.RivalLaw`. A formula gives
the time ``t`` of one pass with local batch ``b`` on ``n`` devices of ``m`` nodes.

References
----------
Venkataraman et al. 2016, *Ernest*, equation 1; Qi et al. 2017, *Paleo*, section 3.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import nnls
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scalelab.laws.rivals import laws as product
from scalelab.laws.rivals.boosted_trees import Regression
from scalelab.laws.rivals.forms import Fitted, Formula, Pollux, Power, RivalForm
from scalelab.laws.rivals.laws import RivalLaw
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.physics import Configurations


class LinearForm(Formula):
    """A sum of features with coefficients that are not negative."""

    @abstractmethod
    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, n_coefficients)."""

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        return np.asarray(self.features(at) @ values)

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients by non-negative least squares."""
        return np.asarray(
            nnls(self.features(at) / time[:, None], np.ones(len(time)))[0]
        )


class Ernest(LinearForm):
    """t = a + b_1 b + b_2 log n + b_3 (n - 1)."""

    names = ("fixed", "per_sample", "tree", "per_device")

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 4)."""
        ones = np.ones(len(at.samples))
        n = at.world_size
        return np.column_stack([ones, at.samples, np.log(n), n - 1])


class EndLine(LinearForm):
    """A line in the local batch, fitted at one end of the world sizes, for every n."""

    names = ("fixed", "per_sample")

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 2)."""
        return np.column_stack([np.ones(len(at.samples)), at.samples])

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the line through one allocation of each local batch."""
        order = np.lexsort((at.world_size, at.samples))
        chosen = order[self.ends(np.diff(at.samples[order]) > 0)]
        features = self.features(at)[chosen] / time[chosen, None]
        return np.asarray(nnls(features, np.ones(len(chosen)))[0])

    @staticmethod
    @abstractmethod
    def ends(is_next: np.ndarray) -> np.ndarray:
        """Choose which points to fit; they are sorted by batch, then by world size.

        Parameters
        ----------
        is_next : ndarray of bool, shape (n_points - 1,)
            The point after each is of another batch.
        """


class LastEfficiency(EndLine):
    """The efficiency of the most devices measured at each local batch, kept."""

    @staticmethod
    def ends(is_next: np.ndarray) -> np.ndarray:
        """Choose the last point of each batch."""
        return np.append(is_next, True)


class LinearScaling(EndLine):
    """Ideal linear scaling from the smallest measured allocation."""

    @staticmethod
    def ends(is_next: np.ndarray) -> np.ndarray:
        """Choose the first point of each batch."""
        return np.insert(is_next, 0, True)


class ErnestNodes(LinearForm):
    """Ernest with the same terms again for nodes, and a step at the second one."""

    names = (
        "fixed",
        "per_sample",
        "tree",
        "per_device",
        "second_node",
        "node_tree",
        "per_node",
    )

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 7)."""
        m, n = at.num_nodes, at.world_size
        columns = [np.ones(len(n)), at.samples, np.log(n), n - 1]
        return np.column_stack([*columns, m > 1, np.log(m), m - 1])


class Paleo(LinearForm):
    """t = a + b_1 b + 2 (n - 1) / n times the slowest link: in the node, or between."""

    names = ("fixed", "per_sample", "local_ring", "node_ring")

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 4)."""
        ring = 2 * (at.world_size - 1) / at.world_size
        across = at.num_nodes > 1
        ones = np.ones(len(ring))
        return np.column_stack([ones, at.samples, ring * ~across, ring * across])

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients; links never measured are as fast as the others."""
        values = super().fit(time, at)
        if not (at.num_nodes > 1).any():
            values[3] = values[2]
        return values


class Median(RivalForm):
    """The median of five formulas whose errors differ."""

    formulas: ClassVar[tuple[type[Formula], ...]] = (
        ErnestNodes,
        Paleo,
        Pollux,
        Power,
        LastEfficiency,
    )

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Fit each formula on its own."""
        return Middle(tuple(form().learn(time, at) for form in self.formulas))


@dataclass(frozen=True, slots=True)
class Middle:
    """The median of fitted formulas; implements :class:`Fitted`."""

    members: tuple[Fitted, ...]

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Return no coefficients: five sets of them are no set of parameters."""
        return {}

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        return np.asarray(np.median([member(at) for member in self.members], axis=0))


class Forest(RivalForm):
    """A random forest: constant beyond the measured range."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Fit 100 trees."""
        return Regression.fit(RandomForestRegressor(100, random_state=0), time, at)


class GaussianProcess(RivalForm):
    """A Gaussian process: a plane, and a smooth departure from it."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Fit the process over features of equal scale."""
        kernel = DotProduct() + RBF(2.0, (0.3, 30)) + WhiteKernel(1e-2, (1e-4, 0.5))
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        with warnings.catch_warnings():
            # of a process whose scale lies at a bound: it is still the best found
            warnings.simplefilter("ignore", UserWarning)
            return Regression.fit(make_pipeline(StandardScaler(), process), time, at)


class ErnestLaw(RivalLaw):
    """Ernest's four features."""

    name = "ernest"
    form = Ernest
    reference = "t = a + b1 b + b2 log n + b3 (n-1) (Venkataraman et al. 2016)"


class ErnestNodesLaw(RivalLaw):
    """Ernest's features for devices and again for nodes."""

    name = "ernest_nodes"
    form = ErnestNodes
    reference = "Ernest, and b4 [m>1] + b5 log m + b6 (m-1) for m nodes"


class PaleoLaw(RivalLaw):
    """Compute and a ring of the slowest link."""

    name = "paleo"
    form = Paleo
    reference = "t = a + b1 b + 2 (n-1)/n S per tier (Qi et al. 2017)"


class MedianLaw(RivalLaw):
    """Five formulas and no choice between them."""

    name = "median"
    form = Median
    reference = "median of ernest_nodes, paleo, pollux, power, last_efficiency"


class LinearScalingLaw(RivalLaw):
    """Ideal linear scaling from the smallest measured allocation."""

    name = "linear"
    form = LinearScaling
    reference = "t(n) = t of the fewest devices measured"


class LastEfficiencyLaw(RivalLaw):
    """The efficiency of the largest measured allocation, kept for all larger ones."""

    name = "last_efficiency"
    form = LastEfficiency
    reference = "t(n) = t of the most devices measured"


class ForestLaw(RivalLaw):
    """A random forest, without any formula."""

    name = "forest"
    form = Forest
    reference = "random forest on log devices, nodes and batches"


class ProcessLaw(RivalLaw):
    """A Gaussian process, without any formula."""

    name = "gp"
    form = GaussianProcess
    reference = "Gaussian process on log devices, nodes and batches"


LAWS: Mapping[str, type[StepTimeLaw]] = {
    **product.LAWS,
    **{
        law.name: law
        for law in (
            ErnestLaw,
            ErnestNodesLaw,
            PaleoLaw,
            MedianLaw,
            LinearScalingLaw,
            LastEfficiencyLaw,
            ForestLaw,
            ProcessLaw,
        )
    },
}
"""The laws of the product, and these, by name."""

"""Published formulas for the time of one forward and backward pass, and their fits.

A formula gives the time ``t`` of one pass (one of the passes that gradient accumulation
adds up to a step) with local batch ``b`` on ``n`` devices of ``m`` nodes.

References
----------
Amdahl 1967; Gunther 2007, *Guerrilla Capacity Planning*, chapter 4 (USL); Qiao et al.
2021, *Pollux*, equations 9 to 11; Venkataraman et al. 2016, *Ernest*, equation 1; Qi et
al. 2017, *Paleo*, section 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.optimize import least_squares, nnls

from scalelab.laws.step_time.physics import Configurations

TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Fitted:
    """A formula, or a regressor, that was fitted to measured passes.

    Parameters
    ----------
    time
        Returns the times of a pass, shape (n_configurations,), at configurations.
    coefficients
        Fitted coefficients by name; empty for a regressor, which names none.
    """

    time: Callable[[Configurations], np.ndarray]
    coefficients: Mapping[str, float]


class RivalForm(ABC):
    """A way to fit the time of one pass to measured passes."""

    @abstractmethod
    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Fit the times of a pass, shape (n_configurations,), at configurations."""


class Formula(RivalForm):
    """A published formula with named positive coefficients, fitted to log time."""

    names: ClassVar[tuple[str, ...]]
    """Names of the coefficients."""
    start: ClassVar[tuple[float, ...]]
    """Coefficients at which the search for the best ones starts."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Return the formula with the coefficients that fit the passes best."""
        values = self.fit(time, at)
        named = dict(zip(self.names, map(float, values), strict=True))
        return Fitted(partial(self.time, values), named)

    @abstractmethod
    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients with the least squared error of log time."""

        def residuals(logs: np.ndarray) -> np.ndarray:
            predicted = self.time(np.exp(logs), at)
            misfit = np.log(np.maximum(predicted, TINY)) - np.log(time)
            return np.append(misfit, 1e-3 * (logs - np.log(self.start)))

        start = np.log(self.start)
        found = least_squares(residuals, start, bounds=(-25.0, 12.0), max_nfev=200)
        return np.asarray(np.exp(found.x))


class Amdahl(Formula):
    """Amdahl's law: t = (a + b_1 b) (1 + sigma (n - 1))."""

    names = ("fixed", "per_sample", "serial_fraction")
    start = (0.1, 0.9, 0.05)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        n = at.world_size
        alone = values[0] + values[1] * at.samples
        return np.asarray(alone * (1 + values[2] * (n - 1)))


class Usl(Formula):
    """The universal scalability law.

    t = (a + b_1 b) (1 + sigma (n - 1) + kappa n (n - 1)).
    """

    names = ("fixed", "per_sample", "contention", "coherency")
    start = (0.1, 0.9, 0.05, 1e-4)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        n = at.world_size
        alone = values[0] + values[1] * at.samples
        coherency = values[3] * n * (n - 1)
        return np.asarray(alone * (1 + values[2] * (n - 1) + coherency))


class Power(Formula):
    """A power law: t = (a + b_1 b) n^c."""

    names = ("fixed", "per_sample", "exponent")
    start = (0.1, 0.9, 0.1)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        alone = values[0] + values[1] * at.samples
        return np.asarray(alone * at.world_size ** values[2])


class Pollux(Formula):
    """The throughput model of Pollux.

    t = (C^g + S^g)^(1/g), C = a + b_1 b, S = alpha + beta (n - 2) per tier.
    """

    names = (
        "fixed",
        "per_sample",
        "local_constant",
        "local_growth",
        "node_constant",
        "node_growth",
        "gamma_minus_1",
    )
    start = (0.1, 0.9, 0.15, 0.005, 0.5, 0.02, 1.0)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the times of a pass, shape (n_configurations,)."""
        extra = np.maximum(at.world_size - 2, 0)
        local = values[2] + values[3] * extra
        across = np.maximum(values[4] + values[5] * extra, local)
        sync = np.where(at.num_nodes > 1, across, local) * (at.world_size > 1)
        compute = np.maximum(values[0] + values[1] * at.samples, TINY)
        gamma = 1 + min(values[6], 9.0)
        larger = np.maximum(compute, sync)
        sums = (compute / larger) ** gamma + (sync / larger) ** gamma
        return np.asarray(larger * sums ** (1 / gamma))


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
        features = self.features(at) / time[:, None]
        return np.asarray(nnls(features, np.ones(len(time)))[0])


class ErnestNodes(LinearForm):
    """Ernest's terms for devices, the same again for nodes, and a step at the second.

    t = a + b_1 b + b_2 log n + b_3 (n - 1) + b_4 [m > 1] + b_5 log m + b_6 (m - 1).
    """

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
        if not at.crosses.any():
            values[3] = values[2]
        return values


class LastEfficiency(LinearForm):
    """A line in the local batch through the largest measured allocations, for every n.

    The efficiency of the most devices measured at each local batch is kept.
    """

    names = ("fixed", "per_sample")

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 2)."""
        return np.column_stack([np.ones(len(at.samples)), at.samples])

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the line through the most devices of each local batch."""
        order = np.lexsort((at.world_size, at.samples))
        chosen = order[np.append(np.diff(at.samples[order]) > 0, True)]
        return super().fit(time[chosen], at.take(chosen))


MEDIAN_OF: tuple[type[Formula], ...] = (
    ErnestNodes,
    Paleo,
    Pollux,
    Power,
    LastEfficiency,
)
"""Formulas whose errors differ: their median is better than each of them."""


def each_of(fitted: Sequence[Fitted], at: Configurations) -> np.ndarray:
    """Return the times of a pass by formula, (n_formulas, n_configurations)."""
    return np.array([np.maximum(each.time(at), TINY) for each in fitted])

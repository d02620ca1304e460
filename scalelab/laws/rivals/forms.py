"""Published formulas for the time of a micro-step, and how their authors fit them.

The time ``t`` of one micro-step with local batch ``b`` on ``n`` devices of ``m`` nodes.

References
----------
Amdahl 1967; Gunther 2007, *Guerrilla Capacity Planning*, chapter 4 (USL); Venkataraman
et al. 2016, *Ernest*, equation 1; Qi et al. 2017, *Paleo*, section 3; Qiao et al. 2021,
*Pollux*, equations 9 to 11.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.optimize import least_squares, nnls

from scalelab.laws.step_time.physics import Configurations

_TINY = 1e-9


class Fitted(Protocol):
    """A form with its coefficients."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Coefficients by name; none where the form has too many to name."""
        ...

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        ...


class RivalForm(ABC):
    """How the time of one micro-step is learnt from measured ones."""

    @abstractmethod
    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Return the form fitted to the times of configurations."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A formula at its coefficients; implements :class:`Fitted`."""

    form: Formula
    values: np.ndarray

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Coefficients by name."""
        return dict(zip(self.form.names, map(float, self.values), strict=True))

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        return self.form.time(self.values, at)


class Formula(RivalForm):
    """A formula in named coefficients."""

    names: ClassVar[tuple[str, ...]]
    """Names of the coefficients."""

    def learn(self, time: np.ndarray, at: Configurations) -> Fitted:
        """Return the formula at the coefficients with the smallest relative error."""
        return Evaluated(self, self.fit(time, at))

    @abstractmethod
    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""

    @abstractmethod
    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients with the smallest relative error."""


class LinearForm(Formula):
    """A non-negative combination of features."""

    @abstractmethod
    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, n_coefficients)."""

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
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
    """The line in the local batch through one end of the world sizes, whatever n is."""

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
        """Choose from points sorted by batch, then world size.

        Parameters
        ----------
        is_next : ndarray of bool, shape (n_points - 1,)
            The point after each is of another batch.
        """


class LastEfficiency(EndLine):
    """The time of the most devices measured at each local batch."""

    @staticmethod
    def ends(is_next: np.ndarray) -> np.ndarray:
        """Choose the last point of each batch."""
        return np.append(is_next, True)


class LinearScaling(EndLine):
    """The time of the fewest devices measured at each local batch."""

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


class LogForm(Formula):
    """A formula in the exponentials of its coefficients, fitted to log time."""

    start: ClassVar[tuple[float, ...]]

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients by least squares on log time."""

        def residuals(logs: np.ndarray) -> np.ndarray:
            predicted = self.time(np.exp(logs), at)
            misfit = np.log(np.maximum(predicted, _TINY)) - np.log(time)
            return np.append(misfit, 1e-3 * (logs - np.log(self.start)))

        start = np.log(self.start)
        found = least_squares(residuals, start, bounds=(-25.0, 12.0), max_nfev=200)
        return np.asarray(np.exp(found.x))


class Amdahl(LogForm):
    """t = (a + b_1 b) (1 + sigma (n - 1))."""

    names = ("fixed", "per_sample", "serial_fraction")
    start = (0.1, 0.9, 0.05)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        n = at.world_size
        alone = values[0] + values[1] * at.samples
        return np.asarray(alone * (1 + values[2] * (n - 1)))


class Usl(LogForm):
    """t = (a + b_1 b) (1 + sigma (n - 1) + kappa n (n - 1))."""

    names = ("fixed", "per_sample", "contention", "coherency")
    start = (0.1, 0.9, 0.05, 1e-4)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        n = at.world_size
        alone = values[0] + values[1] * at.samples
        coherency = values[3] * n * (n - 1)
        return np.asarray(alone * (1 + values[2] * (n - 1) + coherency))


class Power(LogForm):
    """t = (a + b_1 b) n^c: throughput follows a power of the devices."""

    names = ("fixed", "per_sample", "exponent")
    start = (0.1, 0.9, 0.1)

    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        alone = values[0] + values[1] * at.samples
        return np.asarray(alone * at.world_size ** values[2])


class Pollux(LogForm):
    """t = (C^g + S^g)^(1/g), C = a + b_1 b, S = alpha + beta (n - 2) per tier."""

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
        """Return micro-step times, shape (n_configurations,)."""
        extra = np.maximum(at.world_size - 2, 0)
        local = values[2] + values[3] * extra
        across = np.maximum(values[4] + values[5] * extra, local)
        sync = np.where(at.num_nodes > 1, across, local) * (at.world_size > 1)
        compute = np.maximum(values[0] + values[1] * at.samples, _TINY)
        gamma = 1 + min(values[6], 9.0)
        larger = np.maximum(compute, sync)
        sums = (compute / larger) ** gamma + (sync / larger) ** gamma
        return np.asarray(larger * sums ** (1 / gamma))


class Median(RivalForm):
    """The median, in log time, of five differently wrong formulas."""

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
    """The median of fitted forms; implements :class:`Fitted`."""

    members: tuple[Fitted, ...]

    @property
    def coefficients(self) -> Mapping[str, float]:
        """None: five sets of them are no parameters."""
        return {}

    def __call__(self, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""
        return np.asarray(np.median([member(at) for member in self.members], axis=0))

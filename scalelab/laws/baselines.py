"""Published step-time laws behind the interface of :class:`StepTimeLaw`.

They answer wherever they are asked, as their authors' tools do; their intervals are
those of the scatter around the fit, and say nothing about the error of the form. All
work on the time ``t`` of one micro-step with local batch ``b`` on ``n`` devices.

References
----------
Amdahl 1967; Gunther 2007, *Guerrilla Capacity Planning*, chapter 4 (USL); Venkataraman
et al. 2016, *Ernest*, equation 1; Qiao et al. 2021, *Pollux*, equations 9 to 11.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, nnls

from scalelab.errors import SpecError
from scalelab.laws.interval import NUM_DRAWS, SEED
from scalelab.laws.physics import NAMES, Configurations, Terms
from scalelab.laws.points import Points
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.step_time import CurveModel, StepTimeLaw
from scalelab.laws.support import Coverage, Gap

_TINY = 1e-9


class Form(ABC):
    """A formula for the time of one micro-step and how its coefficients are found."""

    names: ClassVar[tuple[str, ...]]
    """Names of the coefficients."""

    @abstractmethod
    def time(self, values: np.ndarray, at: Configurations) -> np.ndarray:
        """Return micro-step times, shape (n_configurations,)."""

    @abstractmethod
    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the coefficients with the smallest relative error."""


class LinearForm(Form):
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


class LastEfficiency(LinearForm):
    """The time of the most devices measured at each local batch, whatever n is."""

    names = ("fixed", "per_sample")

    def features(self, at: Configurations) -> np.ndarray:
        """Return features, shape (n_configurations, 2)."""
        return np.column_stack([np.ones(len(at.samples)), at.samples])

    def fit(self, time: np.ndarray, at: Configurations) -> np.ndarray:
        """Return the line through the largest allocations of each local batch."""
        order = np.lexsort((at.world_size, at.samples))
        last = np.append(np.diff(at.samples[order]) > 0, [True])
        chosen = order[last]
        features = self.features(at)[chosen] / time[chosen, None]
        return np.asarray(nnls(features, np.ones(len(chosen)))[0])


class LogForm(Form):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RivalCurve:
    """A form fitted to one curve; implements :class:`CurveModel`."""

    form: Form
    values: np.ndarray
    scatter: float
    points: Points
    coverage: Coverage

    @property
    def spread(self) -> float:
        """Standard deviation of log step time between repeats."""
        return self.points.spread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """None: these laws never refuse."""
        return ()

    def blocking(self, frame: pd.DataFrame) -> tuple[Gap, ...]:
        """None, likewise."""
        return ()

    def support(self, frame: pd.DataFrame) -> np.ndarray:
        """Return what each prediction rests on, see :class:`Support`."""
        return self.coverage.support(Configurations.of(frame))

    def log_draws(self, frame: pd.DataFrame, *, joint: bool) -> np.ndarray:
        """Draw log step times in seconds, shape (n_draws, n_configurations)."""
        at = Configurations.of(frame, self.points.batch_unit)
        micro = np.maximum(self.form.time(self.values, at), _TINY)
        middle = np.log(micro * at.accumulation * self.points.time_unit_s)
        rng = np.random.default_rng(SEED)
        columns = len(middle) if joint else 1
        noise = self.scatter * rng.standard_normal((NUM_DRAWS, columns))
        return np.asarray(middle + noise)

    def terms(self, frame: pd.DataFrame) -> Terms | None:
        """None: these laws name no physical parts."""
        return None

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return the coefficients in units of the typical micro-step and batch."""
        unknown = float("nan")
        rows = [
            (name, float(value), unknown, unknown, "relative", True, "")
            for name, value in zip(self.form.names, self.values, strict=True)
        ]
        columns = ["name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)


def _fit_rival(form: Form, frame: pd.DataFrame) -> RivalCurve:
    points = Points.of(frame)
    micro = np.exp(points.log_time) / points.at.accumulation
    values = form.fit(micro, points.at)
    fitted = np.maximum(form.time(values, points.at), _TINY)
    residuals = np.log(micro) - np.log(fitted)
    freedom = max(len(residuals) - int((values > _TINY).sum()), 1)
    scatter = np.sqrt((residuals**2).sum() / freedom + points.spread**2)
    everything = frozenset(NAMES)
    return RivalCurve(
        form=form,
        values=values,
        scatter=float(scatter),
        points=points,
        coverage=Coverage(at=Configurations.of(frame), informed=everything),
    )


class AmdahlLaw(StepTimeLaw):
    """Amdahl's law with a local batch."""

    name = "amdahl"
    reference = "t = (a + b1 b) (1 + sigma (n-1)) (Amdahl 1967)"

    @staticmethod
    def _fit_curve(frame: pd.DataFrame, prior: StepTimePrior) -> CurveModel:
        return _fit_rival(Amdahl(), frame)


class UslLaw(StepTimeLaw):
    """Gunther's universal scalability law with a local batch."""

    name = "usl"
    reference = "t = (a + b1 b) (1 + sigma (n-1) + kappa n (n-1)) (Gunther 2007)"

    @staticmethod
    def _fit_curve(frame: pd.DataFrame, prior: StepTimePrior) -> CurveModel:
        return _fit_rival(Usl(), frame)


class ErnestLaw(StepTimeLaw):
    """Ernest's four features."""

    name = "ernest"
    reference = "t = a + b1 b + b2 log n + b3 (n-1) (Venkataraman et al. 2016)"

    @staticmethod
    def _fit_curve(frame: pd.DataFrame, prior: StepTimePrior) -> CurveModel:
        return _fit_rival(Ernest(), frame)


class LastEfficiencyLaw(StepTimeLaw):
    """The naive rule: the last measured efficiency stays."""

    name = "last_efficiency"
    reference = "t(n) = t of the most devices measured"

    @staticmethod
    def _fit_curve(frame: pd.DataFrame, prior: StepTimePrior) -> CurveModel:
        return _fit_rival(LastEfficiency(), frame)


class PolluxLaw(StepTimeLaw):
    """The throughput half of Pollux' goodput."""

    name = "pollux"
    reference = (
        "t = (C^g + S^g)^(1/g), S = alpha + beta (n-2) per tier (Qiao et al. 2021)"
    )

    @staticmethod
    def _fit_curve(frame: pd.DataFrame, prior: StepTimePrior) -> CurveModel:
        return _fit_rival(Pollux(), frame)


LAWS: Mapping[str, type[StepTimeLaw]] = MappingProxyType(
    {
        law.name: law
        for law in (
            StepTimeLaw,
            AmdahlLaw,
            UslLaw,
            ErnestLaw,
            LastEfficiencyLaw,
            PolluxLaw,
        )
    }
)


def law_named(name: str) -> type[StepTimeLaw]:
    """Return a step-time law by name.

    Raises
    ------
    SpecError
        No law has this name; lists those that exist.
    """
    if name not in LAWS:
        raise SpecError(f"law={name!r} is unknown. Choose one of {', '.join(LAWS)}.")
    return LAWS[name]

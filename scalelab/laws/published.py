"""Other step-time laws, published ones, with the interface of :class:`StepTimeLaw`.

Such a law predicts every configuration it is asked about, as its authors' own tool
does. Its interval is the scatter of the measured points around the fit, between them
and beyond them what the same law errs by where rows are left out. Each formula is a
function that learns the time ``t`` of one pass (one of those that gradient accumulation
adds up to a step) with local batch ``b`` on ``n`` devices of ``m`` nodes.

References
----------
Amdahl 1967; Gunther 2007, *Guerrilla Capacity Planning*, chapter 4 (USL); Qiao et al.
2021, *Pollux*, equations 9 to 11; Venkataraman et al. 2016, *Ernest*, equation 1; Qi et
al. 2017, *Paleo*, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import pandas as pd
from numpy.linalg import norm
from scipy.optimize import least_squares, nnls

from scalelab.errors import SpecError
from scalelab.inputs.problems import Option
from scalelab.laws.interval import SEED, substreams
from scalelab.laws.rows import CurveKey
from scalelab.laws.step_time.curve import FittedCurve
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points, spread_out
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.support import Coverage

TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Fitted:
    """A formula, or a regressor, that was fitted to measured passes."""

    # Returns the times of a pass, shape (n_configurations,), at configurations
    time: Callable[[Configurations], np.ndarray]
    # Fitted coefficients by name; empty for a regressor, which names none
    coefficients: Mapping[str, float]


Learner = Callable[[np.ndarray, Configurations], Fitted]
"""Fits the times of a pass, shape (n_configurations,), at configurations."""


def amdahl(time: np.ndarray, at: Configurations) -> Fitted:
    """Amdahl's law: t = (a + b_1 b) (1 + sigma (n - 1))."""

    def of(values: np.ndarray, at: Configurations) -> np.ndarray:
        return np.asarray(_alone(values, at) * (1 + values[2] * (at.world_size - 1)))

    return _of_least_log_error(of, _ALONE | {"serial_fraction": 0.05}, time, at)


def usl(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn t = (a + b_1 b) (1 + sigma (n - 1) + kappa n (n - 1))."""

    def of(values: np.ndarray, at: Configurations) -> np.ndarray:
        n = at.world_size
        lost = values[2] * (n - 1) + values[3] * n * (n - 1)
        return np.asarray(_alone(values, at) * (1 + lost))

    start = {"contention": 0.05, "coherency": 1e-4}
    return _of_least_log_error(of, _ALONE | start, time, at)


def power(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn a power law: t = (a + b_1 b) n^c."""

    def of(values: np.ndarray, at: Configurations) -> np.ndarray:
        return np.asarray(_alone(values, at) * at.world_size ** values[2])

    return _of_least_log_error(of, _ALONE | {"exponent": 0.1}, time, at)


def pollux(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn the throughput model of Pollux.

    t = (C^g + S^g)^(1/g), C = a + b_1 b, S = alpha + beta (n - 2) per tier.
    """

    def of(values: np.ndarray, at: Configurations) -> np.ndarray:
        extra = np.maximum(at.world_size - 2, 0)
        local = values[2] + values[3] * extra
        across = np.maximum(values[4] + values[5] * extra, local)
        sync = np.where(at.num_nodes > 1, across, local) * (at.world_size > 1)
        compute = np.maximum(_alone(values, at), TINY)
        gamma = 1 + min(values[6], 9.0)
        larger = np.maximum(compute, sync)
        sums = (compute / larger) ** gamma + (sync / larger) ** gamma
        return np.asarray(larger * sums ** (1 / gamma))

    start = {
        **_ALONE,
        "local_constant": 0.15,
        "local_growth": 0.005,
        "node_constant": 0.5,
        "node_growth": 0.02,
        "gamma_minus_1": 1.0,
    }
    return _of_least_log_error(of, start, time, at)


_ALONE = {"fixed": 0.1, "per_sample": 0.9}


def _alone(values: np.ndarray, at: Configurations) -> np.ndarray:
    return np.asarray(values[0] + values[1] * at.samples)


def _of_least_log_error(
    formula: Callable[[np.ndarray, Configurations], np.ndarray],
    start: Mapping[str, float],
    time: np.ndarray,
    at: Configurations,
) -> Fitted:
    """Fit positive coefficients from these starts by the squared error of log time."""
    logs_at_start = np.log(list(start.values()))

    def residuals(logs: np.ndarray) -> np.ndarray:
        predicted = formula(np.exp(logs), at)
        misfit = np.log(np.maximum(predicted, TINY)) - np.log(time)
        return np.append(misfit, 1e-3 * (logs - logs_at_start))

    found = least_squares(residuals, logs_at_start, bounds=(-25.0, 12.0), max_nfev=200)
    values = np.exp(found.x)
    return Fitted(
        lambda asked: formula(values, asked),
        dict(zip(start, values.tolist(), strict=True)),
    )


def ernest_nodes(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn Ernest's terms for devices, the same again for nodes, and a second node.

    t = a + b_1 b + b_2 log n + b_3 (n - 1) + b_4 [m > 1] + b_5 log m + b_6 (m - 1).
    """

    def features(at: Configurations) -> np.ndarray:
        m, n = at.num_nodes, at.world_size
        columns = [np.ones(len(n)), at.samples, np.log(n), n - 1]
        return np.column_stack([*columns, m > 1, np.log(m), m - 1])

    names = ("fixed", "per_sample", "tree", "per_device")
    more = ("second_node", "node_tree", "per_node")
    return _linear(features, (*names, *more), _coefficients(features(at), time))


def paleo(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn t = a + b_1 b + 2 (n - 1) / n times the slowest link, of two tiers.

    Links that were never measured are as fast as the others.
    """

    def features(at: Configurations) -> np.ndarray:
        ring = 2 * (at.world_size - 1) / at.world_size
        across = at.num_nodes > 1
        ones = np.ones(len(ring))
        return np.column_stack([ones, at.samples, ring * ~across, ring * across])

    values = _coefficients(features(at), time)
    if not at.crosses.any():
        values[3] = values[2]

    names = ("fixed", "per_sample", "local_ring", "node_ring")
    return _linear(features, names, values)


def last_efficiency(time: np.ndarray, at: Configurations) -> Fitted:
    """Learn a line in the local batch through the largest measured allocations.

    The efficiency of the most devices measured at each local batch is kept for every n.
    """

    def features(at: Configurations) -> np.ndarray:
        return np.column_stack([np.ones(len(at.samples)), at.samples])

    order = np.lexsort((at.world_size, at.samples))
    chosen = order[np.append(np.diff(at.samples[order]) > 0, True)]
    values = _coefficients(features(at.take(chosen)), time[chosen])
    return _linear(features, ("fixed", "per_sample"), values)


def _coefficients(features: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return the coefficients by non-negative least squares of relative errors."""
    return np.asarray(nnls(features / time[:, None], np.ones(len(time)))[0])


def _linear(
    features: Callable[[Configurations], np.ndarray],
    names: Sequence[str],
    values: np.ndarray,
) -> Fitted:
    named = dict(zip(names, values.tolist(), strict=True))
    return Fitted(lambda asked: np.asarray(features(asked) @ values), named)


MEDIAN_OF: tuple[Learner, ...] = (ernest_nodes, paleo, pollux, power, last_efficiency)
"""Formulas whose errors differ: their median is better than each of them."""


def each_of(fitted: Sequence[Fitted], at: Configurations) -> np.ndarray:
    """Return the times of a pass by formula, (n_formulas, n_configurations)."""
    return np.array([np.maximum(law.time(at), TINY) for law in fitted])


_MOST_ROWS = 250  # that trees are fitted to; a longer table is sampled


# what a law is believed to err by between the measured levels of devices or batch, and
# for each doubling of either beyond them; worth one left-out row
_USUAL_BETWEEN, _USUAL_BEYOND = 0.1, 0.3
_MOST_LEVELS = 3  # of devices, and of batches, that are left out between the ends


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class PublishedCurve(FittedCurve):
    """Another law fitted to one curve; it doubts no row and has no gaps."""

    fitted: Fitted
    # Deviations of the log time: of measured points, of others between them, and for a
    # doubling of devices and of the local batch beyond them
    scatter: float
    between: float
    beyond: np.ndarray

    @classmethod
    def fit(cls, learn: Learner, frame: pd.DataFrame) -> Self:
        """Fit a formula or a regressor to the rows of one curve."""
        points = Points.of(frame)
        passes = np.exp(points.log_time) / points.at.accumulation
        fitted = learn(passes, points.at)
        residuals = np.log(passes) - np.log(np.maximum(fitted.time(points.at), TINY))
        used = sum(value > TINY for value in fitted.coefficients.values())
        freedom = max(len(residuals) - used, 1)
        scatter = float(np.sqrt((residuals**2).sum() / freedom))
        between, beyond = _left_out(learn, passes, points.at)

        return cls(
            fitted=fitted,
            scatter=scatter,
            between=max(between, scatter),
            beyond=beyond,
            points=points,
            coverage=Coverage.of(frame, frozenset()),
            doubted=pd.DataFrame(columns=["step_time_s", "predicted_s"]),
        )

    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return one normal distribution around each fitted log step time (s)."""
        at = Configurations.of(frame, self.points.batch_unit)
        passes = np.maximum(self.fitted.time(at), TINY)
        middle = np.log(passes * at.accumulation * self.points.time_unit_s)
        is_measured = self.points.repeats_of(frame) > 0
        near = np.where(is_measured, self.scatter, self.between)
        far = self.coverage.distance(Configurations.of(frame)) * self.beyond

        return Mixture(
            weights=np.ones((1, 1)),
            means=middle[None],
            variances=(near**2 + (far**2).sum(axis=1))[None],
        )

    def log_draws(self, frame: pd.DataFrame) -> np.ndarray:
        """Draw log step times in seconds, shape (n_draws, n_configurations)."""
        mixture = self.mixture(frame)
        noise = substreams(SEED, Configurations.of(frame).columns)
        return np.asarray(mixture.mean + np.sqrt(mixture.variance) * noise)

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return the coefficients, in units of the curve's typical pass and batch."""
        unknown = float("nan")
        rows = [
            (name, value, unknown, unknown, "relative", True, "")
            for name, value in self.fitted.coefficients.items()
        ]
        columns = ["name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)


def _left_out(
    learn: Learner, time: np.ndarray, at: Configurations
) -> tuple[float, np.ndarray]:
    """Return the deviations between points and for doublings beyond them, (2,).

    Left out in turn are the last doubling of devices and of the batch, the first one,
    and levels between: what a law says there rests on no row of the level, as what it
    says of one that was not measured.
    """
    errors, distances = [np.empty(0)], [np.empty((0, 2))]
    for values in (at.world_size, at.samples):
        levels = np.unique(values)
        between = levels[1 : -1 : len(levels) // (_MOST_LEVELS + 1) + 1]

        ends = [2 * values > levels[-1] + TINY, values < 2 * levels[0] - TINY]
        for held in (*ends, *(values == level for level in between)):
            if not held.all():
                kept, asked = at.take(~held), at.take(held)
                predicted = np.maximum(learn(time[~held], kept).time(asked), TINY)
                errors.append(np.log(predicted / time[held]))
                known = Coverage(at=kept, informed=frozenset())
                distances.append(known.distance(asked))

    error, (devices, batch) = np.concatenate(errors), np.concatenate(distances).T
    inside, on_more = (devices == 0) & (batch == 0), devices > 0
    of_batch = (batch > 0) & ~on_more
    beyond = [
        _deviation(error[on_more], devices[on_more], _USUAL_BEYOND),
        _deviation(error[of_batch], batch[of_batch], _USUAL_BEYOND),
    ]
    ones = np.ones(inside.sum())
    return _deviation(error[inside], ones, _USUAL_BETWEEN), np.array(beyond)


def _deviation(errors: np.ndarray, units: np.ndarray, usual: float) -> float:
    return float(np.hypot(norm(errors), usual) / np.hypot(norm(units), 1))


class PublishedLaw(StepTimeLaw):
    """A law that fits the same formula, or regressor, to each curve."""

    learn: ClassVar[staticmethod[[np.ndarray, Configurations], Fitted]]

    @classmethod
    def _fit_curves(
        cls, frames: Mapping[CurveKey, pd.DataFrame], prior: StepTimePrior
    ) -> Mapping[CurveKey, FittedCurve]:
        return {key: PublishedCurve.fit(cls.learn, frames[key]) for key in frames}


class AmdahlLaw(PublishedLaw):
    """Amdahl's law, times a straight line in the local batch."""

    name = "amdahl"
    learn = staticmethod(amdahl)
    reference = "t = (a + b1 b) (1 + sigma (n-1)) (Amdahl 1967)"


class UslLaw(PublishedLaw):
    """Gunther's universal scalability law, times a straight line in the local batch."""

    name = "usl"
    learn = staticmethod(usl)
    reference = "t = (a + b1 b) (1 + sigma (n-1) + kappa n (n-1)) (Gunther 2007)"


class PowerLaw(PublishedLaw):
    """A power of the number of devices, times a straight line in the local batch."""

    name = "power"
    learn = staticmethod(power)
    reference = "t = (a + b1 b) n^c"


class PolluxLaw(PublishedLaw):
    """The throughput model of Pollux; its goodput also has a statistical part."""

    name = "pollux"
    learn = staticmethod(pollux)
    reference = (
        "t = (C^g + S^g)^(1/g), S = alpha + beta (n-2) per tier (Qiao et al. 2021)"
    )


def _boosted_trees(time: np.ndarray, at: Configurations) -> Fitted:
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

    def features(at: Configurations) -> np.ndarray:
        n, m, b = at.world_size, at.num_nodes, at.samples
        return np.asarray(np.log(np.column_stack([n, m, n / m, b, n * b])))

    chosen = spread_out(len(time), _MOST_ROWS)
    trees.fit(features(at)[chosen], np.log(time)[chosen])
    return Fitted(
        lambda asked: np.exp(trees.predict(features(asked)).astype(float)), {}
    )


class XgboostLaw(PublishedLaw):
    """Gradient-boosted trees, which know no physics: constant beyond what they saw."""

    name = "xgboost"
    is_flat = True
    learn = staticmethod(_boosted_trees)
    reference = "gradient-boosted trees on log devices, nodes and batches"


LAWS: Mapping[str, type[StepTimeLaw]] = MappingProxyType(
    {
        law.name: law
        for law in (StepTimeLaw, AmdahlLaw, UslLaw, PowerLaw, PolluxLaw, XgboostLaw)
    }
)
"""Step-time laws by the name that ``--law`` takes; the default comes first."""


def law_named(name: str) -> type[StepTimeLaw]:
    """Return a step-time law by name."""
    if name not in LAWS:
        raise SpecError(
            f"{Option('law', name)} is unknown. Choose one of {', '.join(LAWS)}.",
            code="unknown_law",
        )
    return LAWS[name]

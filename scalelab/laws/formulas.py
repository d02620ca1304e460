"""Published formulas for the time of one forward and backward pass, and their fits.

Each formula is a function that learns the time ``t`` of one pass (one of the passes
that gradient accumulation adds up to a step) with local batch ``b`` on ``n`` devices of
``m`` nodes.

References
----------
Amdahl 1967; Gunther 2007, *Guerrilla Capacity Planning*, chapter 4 (USL); Qiao et al.
2021, *Pollux*, equations 9 to 11; Venkataraman et al. 2016, *Ernest*, equation 1; Qi et
al. 2017, *Paleo*, section 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from scalelab.laws.step_time.physics import Configurations

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

    start = _ALONE | {"contention": 0.05, "coherency": 1e-4}
    return _of_least_log_error(of, start, time, at)


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
    """Return the times of a pass on one device, ``a + b_1 b``."""
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
    return np.array([np.maximum(each.time(at), TINY) for each in fitted])

"""The discrepancy between a shape and the truth: a Gaussian process with outliers.

The log error of a shape is the sum of four normal parts: one that is smooth in devices,
nodes and batch, so that neighbours share it; one that depends on the local batch alone
(a library chooses another algorithm at this size); one that depends on the placement
alone (these nodes, this topology); one of the single configuration. An outlier has a
much larger variance: it tells nothing of others, and where it was repeated it is true
of its configuration, to the noise of its repeats. Together with the
spread between repeats and a normal prior of the shape's parameters, a curve is a
Gaussian process. Far from every measurement the first part has mean zero and its full
variance: it changes interpolations and makes extrapolations uncertain.

References
----------
Kennedy and O'Hagan 2001, *Bayesian calibration of computer models*, section 4.
Rasmussen and Williams 2006, *Gaussian Processes for Machine Learning*, sections 2.7
(explicit basis functions) and 4.2 (Matern kernels).
Rahimi and Recht 2007, *Random features for large-scale kernel machines*.
Wilson et al. 2020, *Efficiently sampling functions from Gaussian process posteriors*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import OptimizeResult, minimize

from scalelab.laws.interval import NUM_DRAWS, SEED, substreams
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points, spread_out
from scalelab.laws.step_time.shape_prior import ShapePrior

PARTS = ("smooth", "batch", "placement", "configuration")
_LENGTH = 1.5  # doublings of devices, nodes, devices per node or batch
_BOUNDARY = 2.0  # lengths between one node and three
_PARALLEL = 1.0  # lengths between one device and two
_LOG_RANGE = (np.log(0.001), np.log(1.0))
_NUM_STEPS = 8
# One curve in ten is rough: its rows were measured on machines or under loads that
# differ, so that no shape holds to better than a factor and no single row is an
# outlier. The log probability of such a curve; mean and spread of its log amplitude:
_ROUGH_LOG, _ROUGH, _ROUGH_SPREAD = np.log(0.1), np.log(0.5), 0.5
_MOST_POINTS = 120  # to which amplitudes are fitted
_JITTER = 1e-8
_NUM_WAVES = 256  # of which smooth draws consist


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscrepancyProcess:
    """A Gaussian process over the log errors at a curve's points."""

    points: Points
    log_amplitudes: np.ndarray
    # shape (n_points,): factor on the variance of each single point; large for an
    # outlier
    factors: np.ndarray
    parts: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(
        cls,
        points: Points,
        log_amplitudes: np.ndarray,
        factors: np.ndarray | None = None,
        parts: np.ndarray | None = None,
    ) -> Self:
        """Build the process; correlations (``parts``) are computed if not given."""
        factors = np.ones(len(points)) if factors is None else factors
        parts = correlations(points.at, points.at) if parts is None else parts
        factor = cho_factor(_covariance(points, log_amplitudes, factors, parts), True)

        return cls(
            points=points,
            log_amplitudes=log_amplitudes,
            factors=factors,
            parts=parts,
            inverse=cho_solve(factor, np.eye(len(points))),
        )

    @property
    def variances(self) -> np.ndarray:
        """Variance of each part, shape (4,)."""
        return np.asarray(np.exp(2 * self.log_amplitudes))

    @property
    def peculiar(self) -> np.ndarray:
        """Variance that a repeated outlier has with its configuration, (n_points,)."""
        further = (self.variances[-1] + noise(self.points)) * (self.factors - 1)
        return np.asarray(np.where(self.points.num_repeats > 1, further, 0.0))

    def cross(self, at: Configurations) -> np.ndarray:
        """Return covariances with the points, shape (n_configurations, n_points)."""
        shared = np.tensordot(self.variances, correlations(at, self.points.at), 1)
        return np.asarray(shared + self._peculiar_to(at))

    def variance(self, at: Configurations) -> np.ndarray:
        """Return the variance before any point was seen, shape (n_configurations,)."""
        return np.asarray(self.variances.sum() + self._peculiar_to(at).sum(axis=1))

    def _peculiar_to(self, at: Configurations) -> np.ndarray:
        peculiar = self.peculiar
        if not peculiar.any():
            return np.zeros((len(at.samples), len(self.points)))
        return np.asarray(_matches(at, self.points.at)[-1] * peculiar)

    def draws(self, at: Configurations, carried: np.ndarray) -> np.ndarray:
        """Draw what the points leave open at configurations, shape (n_draws, n).

        A draw of the process before it saw a point is corrected by what the points then
        say of it, so that no configuration depends on the others (Matheron's rule).
        ``carried`` are the weights of the points at each configuration.
        """
        single = (self.variances[-1] + noise(self.points)) * self.factors
        left = np.sqrt(np.maximum(single - self.variances[-1] - self.peculiar, 0.0))
        seen = self._unconditioned(self.points.at)
        seen += left * substreams(SEED + 6, self.points.at.columns)
        return np.asarray(self._unconditioned(at) - seen @ carried)

    def _unconditioned(self, at: Configurations) -> np.ndarray:
        features = _features(at)
        frequencies, phases, heights = _waves(features.shape[1])
        waves = np.cos(features @ frequencies + phases)
        deviations = np.sqrt(self.variances)
        draws = deviations[0] * np.sqrt(2 / _NUM_WAVES) * heights @ waves.T
        for part, names in enumerate(([2], [0, 1], [0, 1, 2, 3]), start=1):
            draws += deviations[part] * substreams(SEED + part, at.columns[:, names])
        peculiar = np.sqrt(self._peculiar_to(at).sum(axis=1))
        if peculiar.any():
            draws += peculiar * substreams(SEED + 9, at.columns)
        return np.asarray(draws)

    def tuned(
        self,
        errors: np.ndarray,
        slopes: np.ndarray,
        prior: ShapePrior,
        *,
        may_be_rough: bool = False,
    ) -> tuple[Self, float]:
        """Return the process with the most probable amplitudes, and their evidence.

        The evidence is the log probability of the errors, up to a constant that is the
        same for all processes of the points. Allow a curve to be rough, so that no
        shape describes it, only once outliers have been found: a single one does not
        make a curve rough.
        """
        chosen = spread_out(len(self.points), _MOST_POINTS)
        points = self.points.take(chosen)
        factors, errors = self.factors[chosen], errors[chosen]
        parts = self.parts[:, chosen][:, :, chosen]
        explained = slopes[chosen] @ prior.covariance @ slopes[chosen].T
        center, spread = prior.amplitude_mean, prior.amplitude_spread
        sizes = parts.copy()
        sizes[-1] = np.diag(factors)

        def negative_log_marginal_likelihood(
            logs: np.ndarray, center: np.ndarray, spread: np.ndarray
        ) -> tuple[float, np.ndarray]:
            total = explained + _covariance(points, logs, factors, parts)
            factor = cho_factor(total, lower=True)
            inverse = cho_solve(factor, np.eye(len(errors)))
            weights = inverse @ errors
            offset = (logs - center) / spread
            value = errors @ weights / 2 + np.log(np.diag(factor[0])).sum()
            value += offset @ offset / 2 + np.log(spread).sum()
            bends = np.tensordot(sizes, inverse, 2) - (sizes @ weights) @ weights
            return float(value), np.exp(2 * logs) * bends + offset / spread

        smooth = _settled(
            negative_log_marginal_likelihood, self.log_amplitudes, (center, spread)
        )
        found = smooth
        if may_be_rough:
            rough = _settled(
                negative_log_marginal_likelihood,
                np.append(self.log_amplitudes[:-1], _ROUGH),
                (np.append(center[:-1], _ROUGH), np.append(spread[:-1], _ROUGH_SPREAD)),
            )
            found = min(smooth, rough, key=lambda x: x.fun - (x is rough) * _ROUGH_LOG)

        process = self.of(self.points, found.x, self.factors, self.parts)
        return process, (found is not smooth) * _ROUGH_LOG - float(found.fun)

    def surprises(
        self, errors: np.ndarray, slopes: np.ndarray, prior: ShapePrior
    ) -> np.ndarray:
        """Return how far each point lies from what the others say, in deviations."""
        explained = slopes @ prior.covariance @ slopes.T
        inverse = np.linalg.inv(np.linalg.inv(self.inverse) + explained)
        return np.asarray(np.abs(inverse @ errors) / np.sqrt(np.diag(inverse)))


@cache
def _waves(num_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return frequencies, phases and heights of waves whose sum is a smooth process.

    Of a Matern correlation the frequencies are a Student's t.
    """
    rng = np.random.default_rng(SEED + 7)
    frequencies = rng.standard_normal((num_features, _NUM_WAVES))
    frequencies /= np.sqrt(rng.chisquare(3, _NUM_WAVES))
    phases = rng.uniform(0, 2 * np.pi, _NUM_WAVES)
    return frequencies, phases, rng.standard_normal((NUM_DRAWS, _NUM_WAVES))


def noise(points: Points) -> np.ndarray:
    """Return the variance of each point: what its runs err by, and their spread."""
    variance = points.scatter.typical**2 + points.own_variance
    return np.asarray(variance / points.num_repeats)


def _settled(
    negative_log_marginal_likelihood: Callable[..., tuple[float, np.ndarray]],
    start: np.ndarray,
    prior: tuple[np.ndarray, np.ndarray],
) -> OptimizeResult:
    return minimize(
        negative_log_marginal_likelihood,
        start,
        prior,
        jac=True,
        method="L-BFGS-B",
        bounds=[_LOG_RANGE] * len(PARTS),
        options={"maxiter": _NUM_STEPS},
    )


def _covariance(
    points: Points, logs: np.ndarray, factors: np.ndarray, parts: np.ndarray
) -> np.ndarray:
    variances = np.exp(2 * logs)
    total = np.tensordot(variances[:-1], parts[:-1], 1)
    single = (variances[-1] + noise(points)) * factors + _JITTER
    return np.asarray(total + np.diag(single))


def correlations(rows: Configurations, columns: Configurations) -> np.ndarray:
    """Return the correlation of each part between configurations.

    Returns
    -------
    ndarray, shape (4, n_rows, n_columns)
        In the order of :data:`PARTS`.
    """
    return np.stack([_smooth(rows, columns), *_matches(rows, columns)])


def _smooth(rows: Configurations, columns: Configurations) -> np.ndarray:
    """Return a Matern correlation of order 3/2, (n_rows, n_columns)."""
    differences = _features(rows)[:, None] - _features(columns)
    distance = np.sqrt((differences**2).sum(axis=-1))
    return np.asarray((1 + distance) * np.exp(-distance))


def _matches(rows: Configurations, columns: Configurations) -> tuple[np.ndarray, ...]:
    batch = _equal(rows.samples, columns.samples)
    placement = _equal(
        rows.world_size + 1j * rows.num_nodes,
        columns.world_size + 1j * columns.num_nodes,
    )
    same = batch & placement & _equal(rows.accumulation, columns.accumulation)
    return batch, placement, same


def _features(at: Configurations) -> np.ndarray:
    per_node = at.world_size / at.num_nodes
    sizes = [at.world_size, at.num_nodes, per_node, at.samples, at.accumulation]
    boundary = _BOUNDARY * np.minimum(at.num_nodes - 1, 2) / 2
    parallel = _PARALLEL * (at.world_size > 1)
    return np.column_stack([np.log2(sizes).T / _LENGTH, boundary, parallel])


def _equal(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.asarray(np.equal.outer(np.round(rows, 9), np.round(columns, 9)))

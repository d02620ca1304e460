r"""The posterior of one convergence curve: a hyperbola, and draws of its parameters.

With ``x = log(B)`` and ``f(x) = log(1 + exp(x - log B_crit))``, run ``j`` at batch
``i`` needs ``S_ij`` samples::

    log S_ij = log S_min + f(x_i) + effect log(norm_i / norm_ref) + e_i + spread z_ij
    e_i ~ Normal(0, form^2),      z_ij ~ Normal(0, 1)
    P(the run reaches the target at all) = exp(-(B_i / B_fail)^2)

``e_i`` is the error of the formula at a batch: how well its learning rate was tuned,
and whatever else the formula leaves out. Given ``B_crit``, which takes the values of a
grid, all else is a linear regression with a closed posterior. Runs that stopped before
their target weigh its draws: a draw that says they should have arrived counts little.

References
----------
McCandlish et al. 2018, *An empirical model of large-batch training*, equations 2.11 and
5.1 (S_min, B_crit; B_crit is near the gradient noise scale).
Gelman et al. 2013, *Bayesian Data Analysis*, section 14.8 (conjugate regression).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from scipy.special import log_ndtr

from scalelab.laws.interval import NUM_DRAWS, SEED

_SPREAD, _SPREAD_WORTH = 0.05, 2.0  # usual spread between runs; its worth in runs
_FORM, _FORM_WORTH = 0.02, 2.0  # usual error of the formula; its worth in batches
# batches are measured up to where they stop paying: B_crit is about 0.6 of the largest
# that arrived, within a factor of two; or near a gradient noise scale, if measured
_CRITICAL_OVER_LARGEST, _CRITICAL_PRIOR = -0.5, 0.8
_NOISE_SCALE_PRIOR = 0.7
_MINIMUM_PRIOR, _EFFECT_PRIOR = 5.0, 0.15  # of log S_min and of the effect
_FAIL_OVER_LARGEST, _FAIL_PRIOR = np.log(30.0), 1.5
_NUM_CRITICAL, _REACH = 1201, 8.0  # grid of log B_crit, in deviations of its prior
_NUM_CANDIDATES = 20_000  # draws of which those that are kept are chosen
_DOUBTED, _ROUNDS = 2.5, 8  # deviations beyond which a batch counts for less
_DIGITS = 12  # so that units and the order of rows change nothing in the last bits


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchData:
    """The runs of one curve, reduced for each pair of batch and normalisation batch.

    All logs are relative to ``log_batch_unit`` and ``log_sample_unit``, so that a
    change of the user's units changes no prediction.
    """

    # shape (n_batches,): of each distinct pair; the normalisation relative to its
    # geometric mean
    log_batch: np.ndarray
    log_normalization: np.ndarray
    count: np.ndarray
    middle: np.ndarray
    # Sum of squared deviations of log samples from those of their pair, over all runs;
    # the number of runs less that of pairs
    scatter: float
    freedom: float
    bounds: np.ndarray
    bound_count: np.ndarray
    bound_at: np.ndarray
    # Log gradient noise scale in samples; NaN where not measured
    log_noise_scale: float
    # Geometric means of the batches, of the samples and of the normalisation batches;
    # NaN where there are none
    log_batch_unit: float
    log_sample_unit: float
    log_normalization_unit: float

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Reduce the rows of one curve, see :class:`TargetRows`."""
        log_norm = np.log(frame["normalization"].to_numpy(float))
        known = np.isfinite(log_norm)
        norm_unit = float(log_norm[known].mean()) if known.any() else float("nan")
        batches = np.log(frame["global_batch_size"].to_numpy(float))
        samples = np.log(frame["samples"].to_numpy(float))
        batch_unit = float(np.unique(batches).mean())
        sample_unit = float(np.sort(samples).mean())
        table = pd.DataFrame(
            {
                "x": np.round(batches - batch_unit, _DIGITS),
                "norm": np.round(np.where(known, log_norm - norm_unit, 0.0), _DIGITS),
                "y": np.round(samples - sample_unit, _DIGITS),
                "censored": frame["censored"].to_numpy(bool),
            }
        ).sort_values(["x", "norm", "y"])

        pairs = table[["x", "norm"]].drop_duplicates().to_numpy()
        table["at"] = table.groupby(["x", "norm"], sort=True).ngroup()
        arrived = table[~table["censored"]].groupby("at")["y"]
        every = range(len(pairs))
        count = arrived.size().reindex(every, fill_value=0).to_numpy(float)
        middle = arrived.median().reindex(every, fill_value=0.0).to_numpy(float)
        stops = table[table["censored"]].groupby(["at", "y"]).size().reset_index()
        scales = frame["noise_scale"].astype(float)
        scale = float(np.log(scales[(scales > 0) & (scales < np.inf)].median()))

        return cls(
            log_batch=pairs[:, 0],
            log_normalization=pairs[:, 1],
            count=count,
            middle=middle,
            scatter=float(((table["y"] - arrived.transform("mean")) ** 2).sum()),
            freedom=float(np.maximum(count - 1, 0).sum()),
            bounds=stops["y"].to_numpy(float),
            bound_count=stops[0].to_numpy(float),
            bound_at=stops["at"].to_numpy(int),
            log_noise_scale=scale - batch_unit,
            log_batch_unit=batch_unit,
            log_sample_unit=sample_unit,
            log_normalization_unit=norm_unit,
        )

    @property
    def largest(self) -> float:
        """Log of the largest batch that reached the target, else of the smallest."""
        reached = self.log_batch[self.count > 0]
        return float(reached.max() if len(reached) else self.log_batch.min())

    @property
    def critical_prior(self) -> tuple[float, float]:
        """Mean and standard deviation of the prior of log B_crit."""
        if np.isfinite(self.log_noise_scale):
            return self.log_noise_scale, _NOISE_SCALE_PRIOR
        return self.largest + _CRITICAL_OVER_LARGEST, _CRITICAL_PRIOR


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """Draws of the parameters of one curve, each of shape (n_draws,)."""

    log_minimum: np.ndarray
    log_critical: np.ndarray
    effect: np.ndarray
    form: np.ndarray
    spread: np.ndarray
    log_fail: np.ndarray
    errors: np.ndarray

    def log_samples(
        self, log_batch: np.ndarray, log_normalization: np.ndarray
    ) -> np.ndarray:
        """Return log samples without the error of the formula, (n_draws, n)."""
        growth = log_growth(self.log_critical, log_batch)
        effect = self.effect[:, None] * log_normalization
        return np.asarray(self.log_minimum[:, None] + growth + effect)

    def log_reaching(self, log_batch: np.ndarray) -> np.ndarray:
        """Return the log probability of reaching the target, (n_draws, n)."""
        over = 2 * (log_batch - self.log_fail[:, None])
        return np.asarray(-np.exp(np.minimum(over, 50)))

    def log_late(self, data: BatchData) -> np.ndarray:
        """Return the log probability that a run arrives only after each bound.

        Of a run that arrives at all, shape (n_draws, n_bounds).
        """
        middle = self.log_samples(data.log_batch, data.log_normalization) + self.errors
        scores = (data.bounds - middle[:, data.bound_at]) / self.spread[:, None]
        return np.asarray(log_ndtr(-scores))

    def take(self, chosen: np.ndarray) -> Self:
        """Return some of the draws."""
        taken = {name: getattr(self, name)[chosen] for name in self.__slots__}
        return replace(self, **taken)


def log_growth(log_critical: np.ndarray, log_batch: np.ndarray) -> np.ndarray:
    """Return ``log(1 + B / B_crit)``, shape (n_critical, n_batches)."""
    return np.asarray(np.logaddexp(0, log_batch - log_critical[:, None]))


def posterior(data: BatchData) -> Draws:
    """Draw the parameters of a curve from their posterior."""
    rng = np.random.default_rng(SEED)
    freedom = data.freedom + _SPREAD_WORTH
    spread = np.sqrt((data.scatter + _SPREAD_WORTH * _SPREAD**2) / freedom)
    regression = _Regression.of(data, spread)
    critical = regression.critical(rng)
    minimum, effect, scale = regression.rest(critical, rng)
    draws = Draws(
        log_minimum=minimum,
        log_critical=critical,
        effect=effect,
        form=_FORM * scale,
        spread=spread * np.sqrt(freedom / rng.chisquare(freedom, _NUM_CANDIDATES)),
        log_fail=data.largest
        + _FAIL_OVER_LARGEST
        + _FAIL_PRIOR * rng.standard_normal(_NUM_CANDIDATES),
        errors=np.empty((_NUM_CANDIDATES, 0)),
    )

    draws = _with_errors(draws, data, regression.doubt, rng)
    order = critical.argsort(kind="stable")
    places = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    chosen = _at_shares(_log_weights(draws, data)[order], places)
    # in random order: sorted draws would be correlated with other draws
    return draws.take(rng.permutation(order[chosen]))


def _at_shares(logs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the positions at which log weights have added up to some shares."""
    cumulated = np.cumsum(np.exp(logs - logs.max()))
    return np.asarray(np.searchsorted(cumulated, places * cumulated[-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Regression:
    """The regression of log samples, less the growth, on one and the normalisation.

    The variance of a batch is ``scale^2`` times the usual one; the prior of ``scale``
    is worth a few batches. Batches far from all others are doubted.
    """

    data: BatchData
    doubt: np.ndarray
    seen: np.ndarray
    design: np.ndarray
    precision: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, data: BatchData, spread: float) -> Self:
        seen, doubt = np.flatnonzero(data.count), np.ones(len(data.count))
        luck = spread**2 / np.maximum(data.count, 1)

        found = cls.with_doubt(data, luck, doubt)
        for _ in range(_ROUNDS if len(seen) > 3 else 0):
            logs, coefficients, squares = found._solve(found._grid())
            best = int(logs.argmax())
            left = found._left(found._grid()[[best]])[0]
            left = left - coefficients[best] @ found.design.T
            size = (_FORM_WORTH + squares[best]) / (_FORM_WORTH + len(seen))
            scores = left**2 / (size * (_FORM**2 + luck[seen]))
            doubt = np.ones(len(data.count))
            doubt[seen] = np.maximum(scores / _DOUBTED**2, 1.0)
            found = cls.with_doubt(data, luck, doubt)

        return found

    @classmethod
    def with_doubt(cls, data: BatchData, luck: np.ndarray, doubt: np.ndarray) -> Self:
        seen = np.flatnonzero(data.count)
        variance = (doubt * _FORM**2 + luck)[seen]
        design = np.column_stack([np.ones(len(seen)), data.log_normalization[seen]])
        prior = np.diag([_MINIMUM_PRIOR**-2.0, _EFFECT_PRIOR**-2.0])

        return cls(
            data=data,
            doubt=doubt,
            seen=seen,
            design=design,
            precision=design.T @ (design / variance[:, None]) + prior,
            weights=1 / variance,
        )

    def _grid(self) -> np.ndarray:
        middle, deviation = self.data.critical_prior
        reach = _REACH * deviation
        return np.linspace(middle - reach, middle + reach, _NUM_CRITICAL)

    def _left(self, log_critical: np.ndarray) -> np.ndarray:
        growth = log_growth(log_critical, self.data.log_batch[self.seen])
        return np.asarray(self.data.middle[self.seen] - growth)

    def _solve(
        self, log_critical: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log posterior, coefficients and squared error by critical batch."""
        left = self._left(log_critical)
        projected = (left * self.weights @ self.design).T
        coefficients = np.linalg.solve(self.precision, projected).T
        explained = ((coefficients @ self.precision) * coefficients).sum(axis=1)
        squares = np.maximum(left**2 @ self.weights - explained, 0.0)
        middle, deviation = self.data.critical_prior
        logs = -((log_critical - middle) ** 2) / (2 * deviation**2)
        freedom = _FORM_WORTH + len(self.seen)
        return logs - freedom / 2 * np.log(_FORM_WORTH + squares), coefficients, squares

    def critical(self, rng: np.random.Generator) -> np.ndarray:
        grid = self._grid()
        places = (np.arange(_NUM_CANDIDATES) + 0.5) / _NUM_CANDIDATES
        drawn = grid[_at_shares(self._solve(grid)[0], places)]
        jitter = rng.uniform(-0.5, 0.5, _NUM_CANDIDATES) * (grid[1] - grid[0])
        return np.asarray(drawn + jitter)

    def rest(
        self, log_critical: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw log S_min, effect and scale, given the critical batches."""
        _, coefficients, squares = self._solve(log_critical)
        freedom = _FORM_WORTH + len(self.seen)
        luck = rng.chisquare(freedom, len(log_critical))
        scale = np.sqrt((_FORM_WORTH + squares) / luck)
        root = np.linalg.cholesky(np.linalg.inv(self.precision))
        normal = rng.standard_normal((len(log_critical), 2))
        minimum, effect = (coefficients + scale[:, None] * normal @ root.T).T
        return minimum, effect, scale


def _with_errors(
    draws: Draws, data: BatchData, doubt: np.ndarray, rng: np.random.Generator
) -> Draws:
    left = data.middle - draws.log_samples(data.log_batch, data.log_normalization)
    form = draws.form[:, None] ** 2 * doubt
    luck = draws.spread[:, None] ** 2 / np.maximum(data.count, 1)
    share = np.where(data.count > 0, form / (form + luck), 0.0)
    deviation = np.sqrt(np.where(data.count > 0, share * luck, form))
    errors = share * left + deviation * rng.standard_normal(left.shape)
    return replace(draws, errors=errors)


def _log_weights(draws: Draws, data: BatchData) -> np.ndarray:
    """Return the log probability that the runs arrived, and stopped, as they did."""
    reaching, at = draws.log_reaching(data.log_batch), data.bound_at
    late = reaching[:, at] + draws.log_late(data)
    never = np.log(-np.expm1(np.minimum(reaching[:, at], -1e-12)))
    stopped = np.logaddexp(never, late) @ data.bound_count
    return np.asarray(reaching @ data.count + stopped)

r"""The posterior of one convergence curve: its density, and draws from it.

With ``x = log(B)`` and ``f(x) = log(1 + exp(a (x - log B_crit)))``, run ``j`` at batch
``i`` needs ``S_ij`` samples::

    log S_ij = log S_min + f(x_i) + effect log(norm_i / norm_ref) + e_i + spread z_ij
    e_i ~ 0.9 Normal(0, form^2) + 0.1 Normal(0, (4 form)^2),      z_ij ~ Normal(0, 1)
    P(the run reaches the target at all) = exp(-(B_i / B_fail)^2)

``e_i`` is the error of the formula at a batch: how well its learning rate was tuned,
and whatever else the formula leaves out. Its heavy tail allows for an outlier among the
batches. The error is integrated out: in closed form where every run of a batch reached
the target, by Gauss-Hermite quadrature where some stopped before.

References
----------
McCandlish et al. 2018, *An empirical model of large-batch training*, equations 2.11 and
5.1 (S_min, B_crit; B_crit is near the gradient noise scale).
Shallue et al. 2018, *Measuring the effects of data parallelism*, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import log_ndtr, logsumexp

from scalelab.laws.convergence.importance import draw
from scalelab.laws.interval import SEED

NAMES = (
    "log_reference",
    "log_critical",
    "log_exponent",
    "log_form",
    "log_spread",
    "log_fail",
    "effect",
)
"""Columns of a position: log samples at the batch unit, then as in the formula."""
ODD_SHARE, ODD_SCALE = 0.1, 4.0
_EXPONENT_PRIOR = 0.25  # standard deviation of log a
_FORM, _FORM_PRIOR = 0.04, 0.7
_SPREAD, _SPREAD_PRIOR = 0.08, 0.8
_CRITICAL_OVER_LARGEST, _CRITICAL_PRIOR = 0.0, 2.0  # logs, without a noise scale
_NOISE_SCALE_PRIOR = 1.0  # log, where a gradient noise scale was measured
_FAIL_OVER_LARGEST, _FAIL_PRIOR = np.log(30.0), 1.5
_EFFECT_PRIOR = 0.15
_DIGITS = 12  # so that units and the order of rows change nothing in the last bits
_NUM_PRIOR_DRAWS = 2000
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_SCALES = np.repeat([1.0, ODD_SCALE], len(_NODES))
_Z = np.tile(_NODES, 2) * _SCALES
_LOG_WEIGHTS = np.log(
    np.concatenate([(1 - ODD_SHARE) * _WEIGHTS, ODD_SHARE * _WEIGHTS]) / _WEIGHTS.sum()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchData:
    """The runs of one curve, reduced for each pair of batch and normalisation batch.

    All logs are relative to ``log_batch_unit`` and ``log_sample_unit``, so that a
    change of the user's units changes no prediction.

    Parameters
    ----------
    log_batch, log_normalization : ndarray, shape (n_batches,)
        Of each distinct pair; the normalisation relative to its geometric mean.
    count, mean, scatter : ndarray, shape (n_batches,)
        Of log samples over the runs that reached the target: number, mean, sum of
        squared deviations.
    bounds, bound_count : ndarray, shape (n_bounds,)
        Log samples at which the other runs stopped, and how many stopped there.
    bound_at : ndarray of int, shape (n_bounds,)
        The pair that each bound belongs to, sorted.
    log_noise_scale
        Log gradient noise scale in samples; NaN where not measured.
    log_batch_unit, log_sample_unit
        Geometric means of the batches and of the samples.
    """

    log_batch: np.ndarray
    log_normalization: np.ndarray
    count: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray
    bounds: np.ndarray
    bound_count: np.ndarray
    bound_at: np.ndarray
    log_noise_scale: float
    log_batch_unit: float
    log_sample_unit: float

    @classmethod
    def of(cls, frame: pd.DataFrame) -> BatchData:
        """Reduce the rows of one curve, see :class:`TargetRows`."""
        log_norm = np.log(frame["normalization"].to_numpy(float))
        known = np.isfinite(log_norm)
        middle = log_norm[known].mean() if known.any() else 0.0
        batches = np.log(frame["global_batch_size"].to_numpy(float))
        samples = np.log(frame["samples"].to_numpy(float))
        batch_unit = float(np.unique(batches).mean())
        sample_unit = float(np.sort(samples).mean())
        table = pd.DataFrame(
            {
                "x": np.round(batches - batch_unit, _DIGITS),
                "norm": np.round(np.where(known, log_norm - middle, 0.0), _DIGITS),
                "y": np.round(samples - sample_unit, _DIGITS),
                "censored": frame["censored"].to_numpy(bool),
            }
        ).sort_values(["x", "norm", "y"])
        place = table.groupby(["x", "norm"], sort=True).ngroup().to_numpy()
        pairs = table[["x", "norm"]].drop_duplicates().to_numpy()
        y, censored = table["y"].to_numpy(), table["censored"].to_numpy()
        at, seen = place[~censored], y[~censored]
        count = np.bincount(at, minlength=len(pairs)).astype(float)
        mean = np.bincount(at, seen, len(pairs)) / np.maximum(count, 1)
        stops, stopped = np.unique(
            np.column_stack([place[censored], y[censored]]), axis=0, return_counts=True
        )
        scales = frame["noise_scale"].to_numpy(float)
        scales = scales[np.isfinite(scales) & (scales > 0)]
        return cls(
            log_batch=pairs[:, 0],
            log_normalization=pairs[:, 1],
            count=count,
            mean=mean,
            scatter=np.bincount(at, (seen - mean[at]) ** 2, len(pairs)),
            bounds=stops[:, 1],
            bound_count=stopped,
            bound_at=stops[:, 0].astype(int),
            log_noise_scale=float(np.log(np.median(scales))) - batch_unit
            if len(scales)
            else float("nan"),
            log_batch_unit=batch_unit,
            log_sample_unit=sample_unit,
        )

    @property
    def largest(self) -> float:
        """Log of the largest batch that reached the target, else of the smallest."""
        reached = self.log_batch[self.count > 0]
        return float(reached.max() if len(reached) else self.log_batch.min())

    @property
    def is_stopped(self) -> np.ndarray:
        """Whether a run of the pair stopped before its target, shape (n_batches,)."""
        return np.bincount(self.bound_at, minlength=len(self.count)) > 0

    @property
    def critical_prior(self) -> tuple[float, float]:
        """Mean and standard deviation of the prior of log B_crit."""
        if np.isfinite(self.log_noise_scale):
            return self.log_noise_scale, _NOISE_SCALE_PRIOR
        return self.largest + _CRITICAL_OVER_LARGEST, _CRITICAL_PRIOR


def log_growth(positions: np.ndarray, log_batch: np.ndarray) -> np.ndarray:
    """Return ``log(1 + (B / B_crit)^a)``, shape (n_positions, n_batches)."""
    exponent = np.exp(positions[:, 2:3])
    return np.asarray(np.logaddexp(0, exponent * (log_batch - positions[:, 1:2])))


def log_samples(
    positions: np.ndarray, log_batch: np.ndarray, log_normalization: np.ndarray
) -> np.ndarray:
    """Return log samples without the error of the formula, same shape."""
    anchor = positions[:, :1] - log_growth(positions, np.zeros(1))
    effect = positions[:, 6:7] * log_normalization
    return np.asarray(anchor + log_growth(positions, log_batch) + effect)


def log_failing(positions: np.ndarray, log_batch: np.ndarray) -> np.ndarray:
    """Return ``(B / B_fail)^2``, minus the log probability of reaching the target."""
    return np.asarray(np.exp(np.minimum(2 * (log_batch - positions[:, 5:6]), 50)))


class CurvePosterior:
    """The log density of one curve's parameters, and draws from it."""

    def __init__(self, data: BatchData) -> None:
        self.data = data
        self._stopped = np.flatnonzero(data.is_stopped)
        self._reached = np.flatnonzero(~data.is_stopped)
        position = np.searchsorted(self._stopped, data.bound_at)
        self._starts = np.searchsorted(position, np.arange(len(self._stopped)))
        self._position = position
        self._level = (
            float(np.average(data.mean, weights=data.count))
            if data.count.any()
            else float(data.bounds.max())
        )

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log densities up to a constant, shape (n_positions,)."""
        data = self.data
        middle = log_samples(positions, data.log_batch, data.log_normalization)
        failing = log_failing(positions, data.log_batch)
        form, spread = np.exp(positions[:, 3:4]), np.exp(positions[:, 4:5])
        seen = -failing * data.count - data.count * positions[:, 4:5]
        seen -= data.scatter / (2 * spread**2)
        terms = seen.sum(axis=1) + self._log_prior(positions)
        if len(self._reached):
            terms += _closed_form(self.data, self._reached, middle, form, spread)
        if len(self._stopped):
            terms += logsumexp(
                self._node_logs(middle, failing, form, spread), axis=2
            ).sum(axis=1)
        return np.asarray(terms)

    @property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the prior, shape (7,)."""
        center, prior = self.data.critical_prior
        largest = self.data.largest
        rows = (
            (self._level, 3.0),  # proper, so that it is finite if no run arrived
            (center, prior),
            (0.0, _EXPONENT_PRIOR),
            (np.log(_FORM), _FORM_PRIOR),
            (np.log(_SPREAD), _SPREAD_PRIOR),
            (largest + _FAIL_OVER_LARGEST, _FAIL_PRIOR),
            (0.0, _EFFECT_PRIOR),
        )
        means, widths = np.array(rows, dtype=float).T
        return means, widths

    def _log_prior(self, positions: np.ndarray) -> np.ndarray:
        means, widths = self._prior
        return np.asarray(-0.5 * (((positions - means) / widths) ** 2).sum(axis=1))

    def _node_logs(
        self,
        middle: np.ndarray,
        failing: np.ndarray,
        form: np.ndarray,
        spread: np.ndarray,
    ) -> np.ndarray:
        """Return the log integrand at each quadrature node of the error.

        Its shape is (n_positions, n_stopped, n_nodes).
        """
        data, stopped = self.data, self._stopped
        at = middle[:, stopped, None] + form[:, :, None] * _Z
        wide = spread[:, :, None]
        seen = (
            -0.5
            * data.count[stopped, None]
            * ((data.mean[stopped, None] - at) / wide) ** 2
        )
        score = (data.bounds[:, None] - at[:, self._position]) / wide
        reaching = -failing[:, data.bound_at, None]
        never = np.log(-np.expm1(np.minimum(reaching, -1e-12)))
        beyond = np.logaddexp(never, reaching + log_ndtr(-score))
        beyond *= data.bound_count[:, None]
        return np.asarray(
            seen + np.add.reduceat(beyond, self._starts, axis=1) + _LOG_WEIGHTS
        )

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw parameters, and the error of the formula at each measured pair.

        Returns
        -------
        positions : ndarray, shape (n_draws, 7)
        errors : ndarray, shape (n_draws, n_batches)
        """
        rng = np.random.default_rng(SEED)
        first, log_first = self._draw_prior(rng)
        positions = draw(self.log_density, first, log_first, rng)
        # sorted draws would be correlated with other draws of the same position
        positions = rng.permutation(positions)
        return positions, self._errors(positions, rng)

    def _draw_prior(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw from the prior, but with the level of samples that fits each draw."""
        means, widths = self._prior
        score = rng.standard_normal((_NUM_PRIOR_DRAWS, len(NAMES)))
        draws = means + widths * score
        data, known = self.data, self.data.count > 0
        if known.any():
            draws[:, 0] = 0.0
            middle = log_samples(draws, data.log_batch, data.log_normalization)
            noise = np.hypot(np.exp(draws[:, 3]), np.exp(draws[:, 4]))
            noise *= 2 / np.sqrt(known.sum())
            misfit = np.median((data.mean - middle)[:, known], axis=1)
            draws[:, 0] = misfit + noise * score[:, 0]
        else:
            noise = widths[0]
        return draws, -0.5 * (score**2).sum(axis=1) - np.log(noise)

    def _errors(self, positions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        data = self.data
        middle = log_samples(positions, data.log_batch, data.log_normalization)
        form, spread = np.exp(positions[:, 3:4]), np.exp(positions[:, 4:5])
        errors = np.empty_like(middle)
        at = self._reached
        if len(at):
            plain, odd, noise = _components(data, at, middle, form, spread)
            is_odd = rng.random(plain.shape) < np.exp(odd - np.logaddexp(plain, odd))
            scale = (np.where(is_odd, ODD_SCALE, 1.0) * form) ** 2
            share = scale / (scale + noise)
            mean = share * (data.mean[at] - middle[:, at])
            luck = np.sqrt(share * noise) * rng.standard_normal(share.shape)
            errors[:, at] = mean + luck
        if len(self._stopped):
            failing = log_failing(positions, data.log_batch)
            logs = self._node_logs(middle, failing, form, spread)
            gumbel = rng.gumbel(size=logs.shape)
            errors[:, self._stopped] = form * _Z[(logs + gumbel).argmax(axis=2)]
        return errors


def _components(
    data: BatchData,
    at: np.ndarray,
    middle: np.ndarray,
    form: np.ndarray,
    spread: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log densities of each batch's mean under both errors, and its variance."""
    noise = spread**2 / data.count[at]
    square = (data.mean[at] - middle[:, at]) ** 2
    logs = []
    for share, scale in ((1 - ODD_SHARE, 1.0), (ODD_SHARE, ODD_SCALE)):
        variance = (scale * form) ** 2 + noise
        # the mean's own normalisation; the runs' stands with the scatter
        logs.append(
            np.log(share) - 0.5 * (square / variance + np.log(variance / noise))
        )
    return logs[0], logs[1], noise


def _closed_form(
    data: BatchData,
    at: np.ndarray,
    middle: np.ndarray,
    form: np.ndarray,
    spread: np.ndarray,
) -> np.ndarray:
    plain, odd, _ = _components(data, at, middle, form, spread)
    return np.asarray(np.logaddexp(plain, odd).sum(axis=1))

r"""A law for the time to target along a series of whole runs; only benchmarks ask it.

Published series, and sweeps that measured nothing but whole runs, hold a few points at
which devices, batch, parallelism and software changed together: too little for the
terms of a step-time law. What such a series can tell is what share of a step does not
shrink with the work per device, and how that share grows. With ``n`` devices, ``b``
samples per device, and the largest run ``(n_0, b_0)`` as the reference::

    step = step_0 ((1 - fixed) b / b_0 + fixed (n / n_0)^growth)
    time = samples to target(global batch) / global batch * step

Both shares are integrated over a grid under a prior, never fitted: two points pin down
neither. Runs far from the reference count less, as more differs between them.

References
----------
McCandlish et al. 2018, *An empirical model of large-batch training*, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.input_checks import positive
from scalelab.laws.interval import NUM_DRAWS, SEED, central, check_mass
from scalelab.laws.rows import numbers

_COLUMNS = ("world_size", "global_batch_size", "samples_to_target", "time_to_target_s")
_FIXED = np.linspace(0.02, 0.98, 33)
_GROWTH = np.log2(1 + np.linspace(-0.06, 0.5, 29))
_FIXED_PRIOR = 1.5  # both shapes of a beta distribution: neither 0 nor 1
_GROWTH_PRIOR, _SHRINK_PRIOR = 0.04, 0.02  # per doubling, mean, upwards and downwards
_NOISE, _NOISE_PER_DOUBLING = 0.04, 0.06
_FREEDOM = 4.0  # of the t that runs scatter with: one odd run may be odd
_LEVEL_PRIOR, _LEVEL_SPREAD = 0.04, 0.1  # of one's own samples against a reference


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRunLaw:
    """Whole runs of one job along a series of scales.

    Parameters
    ----------
    weights, fixed, growth, log_step : ndarray, shape (n_grid,)
        Posterior weights over the grid, and the reference step (log seconds) there.
    devices, samples_per_device
        Of the reference run.
    convergence
        Samples to the target.
    log_level, log_level_deviation
        This series' samples against the convergence law's.
    """

    weights: np.ndarray
    fixed: np.ndarray
    growth: np.ndarray
    log_step: np.ndarray
    devices: float
    samples_per_device: float
    convergence: ConvergenceLaw
    log_level: float
    log_level_deviation: float

    @classmethod
    def fit(
        cls, runs: pd.DataFrame, reference: pd.DataFrame | None = None
    ) -> WholeRunLaw:
        """Fit a series.

        Parameters
        ----------
        runs
            Whole runs of one job and target: ``world_size``, ``global_batch_size``,
            ``time_to_target_s`` and ``samples_to_target``. A run given twice counts
            once.
        reference
            Rows of the same job and target measured elsewhere, for the convergence
            law; None: the runs' own.

        Raises
        ------
        FitError
            No run reached its target in a measured time.
        SpecError
            The reference is of several rules or targets.
        """
        known = _measured(runs)
        devices, batch, samples, time = known.to_numpy().T
        if known.empty:
            raise FitError(
                f"None of the {len(runs)} runs has both time_to_target_s and "
                "samples_to_target, and its world_size and global_batch_size. Run at "
                "least one end-to-end trial to its target."
            )
        log_step = np.log(time * batch / samples)
        top = np.lexsort((-log_step + np.log(batch), devices))[-1]
        fixed, growth = (g.ravel() for g in np.meshgrid(_FIXED, _GROWTH, indexing="ij"))
        shape = _log_shape(fixed, growth, devices, batch / devices, top)
        level, weights = _posterior(fixed, growth, shape, log_step, devices, top)
        convergence = ConvergenceLaw.fit(known if reference is None else reference)
        if len(convergence.curves) > 1:
            raise SpecError(
                f"The reference holds {len(convergence.curves)} convergence curves. "
                "Give the rows of one rule and target."
            )
        bias = _level(convergence, known) if reference is not None else (0.0, 0.0)
        return cls(
            weights=weights,
            fixed=fixed,
            growth=growth,
            log_step=level,
            devices=float(devices[top]),
            samples_per_device=float(batch[top] / devices[top]),
            convergence=convergence,
            log_level=bias[0],
            log_level_deviation=bias[1],
        )

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the time of one further run of the series.

        Parameters
        ----------
        configurations
            ``world_size`` and ``global_batch_size``.
        interval
            Probability mass of the interval, in (0, 1).

        Returns
        -------
        DataFrame
            The configurations' columns, ``step_time_s``, ``samples_to_target``,
            ``time_to_target_s``, ``time_to_target_lo_s`` and ``time_to_target_hi_s``.

        Raises
        ------
        SpecError
            A configuration has no positive number of devices or batch.
        """
        check_mass(interval)
        devices = positive(configurations, "world_size")
        batch = positive(configurations, "global_batch_size")
        steps = self._log_steps(devices, batch)
        (key,) = self.convergence.curves
        curve = self.convergence.curves[key]
        needs = np.log(self.convergence.sample(key, batch)) + self.log_level
        rng = np.random.default_rng(SEED + 9)
        luck = self.log_level_deviation * rng.standard_normal((NUM_DRAWS, 1))
        lo, hi = central(np.exp(steps + needs + luck - np.log(batch)), interval)
        step = np.exp(np.median(steps, axis=0))
        need = np.exp(np.median(curve.log_median(batch), axis=0) + self.log_level)
        return configurations.assign(
            step_time_s=step,
            samples_to_target=need,
            time_to_target_s=need / batch * step,
            time_to_target_lo_s=lo,
            time_to_target_hi_s=hi,
        )

    def _log_steps(self, devices: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Draw log step times in seconds, shape (n_draws, n_configurations)."""
        rng = np.random.default_rng(SEED + 10)
        cumulated = np.cumsum(self.weights)
        places = (rng.permutation(NUM_DRAWS) + 0.5) / NUM_DRAWS * cumulated[-1]
        at = np.searchsorted(cumulated, places)
        doublings = np.log2(devices / self.devices)
        work = batch / devices / self.samples_per_device
        fixed = self.fixed[at, None]
        grown = fixed * np.exp2(self.growth[at, None] * doublings)
        middle = self.log_step[at, None] + np.log((1 - fixed) * work + grown)
        noise = np.hypot(_NOISE, _NOISE_PER_DOUBLING * doublings)
        return np.asarray(middle + noise * rng.standard_normal((NUM_DRAWS, 1)))


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the runs that have all of them, each run once."""
    table = pd.DataFrame({name: numbers(runs, name) for name in _COLUMNS})
    values = table.to_numpy(float)
    has_all = (np.isfinite(values) & (values > 0)).all(axis=1)
    chosen: pd.DataFrame = table.loc[has_all].drop_duplicates(ignore_index=True)
    return chosen


def _log_shape(
    fixed: np.ndarray,
    growth: np.ndarray,
    devices: np.ndarray,
    per_device: np.ndarray,
    top: int,
) -> np.ndarray:
    """Log of step over reference step, shape (n_grid, n_runs)."""
    doublings, work = np.log2(devices / devices[top]), per_device / per_device[top]
    grown = fixed[:, None] * np.exp2(growth[:, None] * doublings)
    return np.asarray(np.log((1 - fixed[:, None]) * work + grown))


def _posterior(
    fixed: np.ndarray,
    growth: np.ndarray,
    shape: np.ndarray,
    log_step: np.ndarray,
    devices: np.ndarray,
    top: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the reference step and the weight of every grid point, (n_grid,)."""
    noise = np.hypot(_NOISE, _NOISE_PER_DOUBLING * np.log2(devices / devices[top]))
    precision = noise**-2
    level = (log_step - shape) @ precision / precision.sum()
    score = (log_step - shape - level[:, None]) / noise
    logs = -(_FREEDOM + 1) / 2 * np.log1p(score**2 / _FREEDOM).sum(axis=1)
    logs += (_FIXED_PRIOR - 1) * np.log(fixed * (1 - fixed))
    per_doubling = np.exp2(growth) - 1
    logs -= np.where(
        per_doubling > 0, per_doubling / _GROWTH_PRIOR, -per_doubling / _SHRINK_PRIOR
    )
    weights = np.exp(logs - logs.max())
    return level, weights / weights.sum()


def _level(law: ConvergenceLaw, runs: pd.DataFrame) -> tuple[float, float]:
    """Return how this series' samples lie to the reference's, and how well known."""
    (key,) = law.curves
    logs = law.curves[key].log_median(numbers(runs, "global_batch_size"))
    error = np.log(numbers(runs, "samples_to_target")) - np.median(logs, axis=0)
    precision = len(error) / _LEVEL_SPREAD**2 + 1 / _LEVEL_PRIOR**2
    middle = float(np.median(error)) * len(error) / _LEVEL_SPREAD**2 / precision
    return middle, float(precision**-0.5)

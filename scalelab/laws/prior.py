"""What is believed about a curve's parameters before its own rows are seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.laws.physics import NAMES, NUM_TIMES

# typical sizes in units of the curve's own micro-step; the tails are those of a Cauchy
_SCALES = np.array([0.3, 1.0, 0.002, 0.2, 0.002, 0.5])
_IMBALANCE_SCALE = 0.03
_EXPONENT_SPREAD = 0.1
_SMALLEST_SPREAD = 0.3
_SMALLEST = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimePrior:
    """Beliefs about the parameters, relative to a curve's typical micro-step.

    Parameters
    ----------
    log_center, log_spread : ndarray, shape (6,)
        Mean and standard deviation of the logarithm of each time parameter, in the
        order of :data:`scalelab.laws.physics.NAMES`; NaN where nothing is known.
    """

    log_center: np.ndarray
    log_spread: np.ndarray

    @classmethod
    def weak(cls) -> StepTimePrior:
        """Know nothing but the order of magnitude."""
        unknown = np.full(NUM_TIMES, np.nan)
        return cls(log_center=unknown, log_spread=unknown)

    @classmethod
    def learn(cls, observations: pd.DataFrame) -> StepTimePrior:
        """Learn what the curves of other observations have in common.

        Only parameters that a curve identifies are used, each relative to that curve's
        typical micro-step.
        """
        # a curve is fitted under a prior, so the law cannot be imported above
        from scalelab.laws.curve import Curve
        from scalelab.laws.rows import split_curves, step_time_rows

        rows = step_time_rows(observations).frame
        curves = [
            Curve.fit(frame, cls.weak())
            for frame in split_curves(rows).values()
            if len(frame)
        ]
        medians = np.array([curve.identified_medians() for curve in curves])
        center = np.full(NUM_TIMES, np.nan)
        spread = np.full(NUM_TIMES, np.nan)
        for position, column in enumerate(medians.reshape(-1, NUM_TIMES).T):
            known = np.log(np.maximum(column[np.isfinite(column)], _SMALLEST))
            if len(known):
                center[position] = np.median(known)
                # one curve of another workload says little about this one
                spread[position] = np.hypot(
                    max(np.std(known), _SMALLEST_SPREAD), 1 / len(known)
                )
        return cls(log_center=center, log_spread=spread)

    @property
    def informed(self) -> frozenset[str]:
        """Parameters about which other curves have told something."""
        return frozenset(
            name
            for name, center in zip(NAMES, self.log_center, strict=False)
            if np.isfinite(center)
        )

    def log_density(self, parameters: np.ndarray) -> np.ndarray:
        """Return log densities up to a constant, shape (n_draws,).

        Parameters
        ----------
        parameters : ndarray, shape (n_draws, 9)
        """
        times = np.maximum(parameters[:, :NUM_TIMES], 1e-12)
        known = np.isfinite(self.log_center)
        weak = -np.log1p((times / _SCALES) ** 2)
        logs = np.log(times)
        informed = -0.5 * ((logs - self.log_center) / self.log_spread) ** 2 - logs
        density = np.where(known, informed, weak).sum(axis=1)
        exponent = (parameters[:, 7] - 1) / _EXPONENT_SPREAD
        imbalance = np.log1p((parameters[:, 8] / _IMBALANCE_SCALE) ** 2)
        # where only (1 - overlap) * transfer shows, this keeps no overlap credible
        overlap = 2 * np.log1p(-parameters[:, 6])
        return np.asarray(density - 0.5 * exponent**2 - imbalance + overlap)

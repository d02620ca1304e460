"""The measured points of one curve: medians over repeats, and their spread."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from scalelab.laws.rows import CONFIGURATION
from scalelab.laws.step_time.physics import Configurations

_SPREAD_FLOOR = 0.003
# the median absolute difference of two normal draws, in standard deviations
_MEDIAN_DIFFERENCE = 0.6745 * np.sqrt(2)
# prior of the spread between repeats, and its weight in repeats
_USUAL_SPREAD, _USUAL_WEIGHT = 0.02, 2.0
_MOST_PAIRS = 10  # of one configuration


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Distinct configurations of one curve, sorted, in the curve's own units.

    Parameters
    ----------
    at
        Configurations; samples in units of ``batch_unit``.
    log_time : ndarray, shape (n_points,)
        Median over repeats of log(step time / ``time_unit_s``).
    num_repeats : ndarray, shape (n_points,)
    spread
        Standard deviation of log step time between repeats.
    time_unit_s, batch_unit
        Typical time of a pass (s) and samples per device of the curve. Laws are fitted
        in these units, so that a change of the user's units changes no prediction.
    """

    at: Configurations
    log_time: np.ndarray
    num_repeats: np.ndarray
    spread: float
    time_unit_s: float
    batch_unit: float

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Points:
        """Reduce the rows of one curve to its points."""
        logs = frame.assign(log_time=np.log(frame["step_time_s"]))
        groups = logs.groupby(list(CONFIGURATION), sort=True)["log_time"]
        points = groups.agg(["median", "size"]).reset_index()
        micro = points["median"] - np.log(points["gradient_accumulation_steps"])
        time_unit_s = float(np.exp(micro.median()))
        samples = Configurations.of(points).samples
        batch_unit = float(np.exp(np.median(np.log(samples))))
        return cls(
            at=Configurations.of(points, batch_unit),
            log_time=points["median"].to_numpy(float) - np.log(time_unit_s),
            num_repeats=points["size"].to_numpy(float),
            spread=_spread([values.to_numpy() for _, values in groups]),
            time_unit_s=time_unit_s,
            batch_unit=batch_unit,
        )

    def take(self, positions: np.ndarray) -> Points:
        """Return some of the points, in the same units."""
        return replace(
            self,
            at=self.at.take(positions),
            log_time=self.log_time[positions],
            num_repeats=self.num_repeats[positions],
        )

    def __len__(self) -> int:
        return len(self.log_time)


def spread_out(num_points: int, most: int) -> np.ndarray:
    """Return sorted positions of at most ``most`` points, drawn at random."""
    if num_points <= most:
        return np.arange(num_points)
    order = np.random.default_rng(0).permutation(num_points)
    return np.sort(order[:most])


def _spread(repeats: list[np.ndarray]) -> float:
    """Estimate the spread from pairs of repeats; an outlier does not change it.

    A configuration with very many repeats counts no more than one with ten pairs.
    """
    differences = [
        np.abs(np.subtract.outer(values, values)[np.triu_indices(len(values), 1)])
        for values in repeats
        if len(values) > 1
    ]
    some = [values[spread_out(len(values), _MOST_PAIRS)] for values in differences]
    pairs = np.concatenate([*some, np.empty(0)])
    seen = np.median(pairs) / _MEDIAN_DIFFERENCE if len(pairs) else 0.0
    usual = np.log(_USUAL_SPREAD) * _USUAL_WEIGHT
    mean = (len(pairs) * np.log(max(seen, _SPREAD_FLOOR)) + usual) / (
        len(pairs) + _USUAL_WEIGHT
    )
    return float(np.exp(mean))

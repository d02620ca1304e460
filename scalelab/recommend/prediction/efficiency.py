"""Scaling efficiency: samples per second and device, against the fewest measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import Interval
from scalelab.laws.interval import central
from scalelab.laws.rows import CONFIGURATION, FitRows, configurations, split_curves
from scalelab.recommend.answer.recommendation import Scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The smallest measured allocation.

    A row is compared with the fastest that was measured there at the row's global
    batch, else with the fastest of all.
    """

    world_size: int
    # Draws step times of one run, (n_draws, n_configurations)
    step_times: Callable[[pd.DataFrame], np.ndarray]
    # Configurations that were measured there, the fastest first
    measured: pd.DataFrame

    @classmethod
    def of(
        cls, rows: FitRows, step_times: Callable[[pd.DataFrame], np.ndarray]
    ) -> Self:
        """Find the smallest allocation among the rows of an answer."""
        size = rows.frame["world_size"].min()
        found = [
            frame.loc[frame["world_size"] == size, [*CONFIGURATION]].assign(**dict(key))
            for key, frame in rows.curves.items()
        ]
        known = pd.concat([each for each in found if len(each)], ignore_index=True)
        rates = _batches(known) / np.median(step_times(known), axis=0)
        measured = known.iloc[np.argsort(-rates, kind="stable")]
        return cls(world_size=int(size), step_times=step_times, measured=measured)

    def compare(
        self, row: pd.DataFrame, mass: float
    ) -> tuple[Interval, Scaling | None]:
        """Return the efficiency of one configuration, and what it compares."""
        (total,), (size,) = _batches(row), row["world_size"]
        base = self.measured.iloc[[(_batches(self.measured) == total).argmax()]]
        (of_base,) = _batches(base)
        is_weak = of_base * size == total * self.world_size
        scaling: Scaling | None = "weak" if is_weak else "other"
        if size == self.world_size:
            scaling = None
        elif of_base == total:
            scaling = "strong"
        at = [each[[*CONFIGURATION]].to_numpy(float).tolist() for each in (base, row)]
        if at[0] == at[1] and [*split_curves(base)] == [*split_curves(row)]:
            return Interval(value=1.0, lo=1.0, hi=1.0), scaling
        # what a curve does not name is no column of its row
        pair = pd.concat([each.dropna(axis=1) for each in (base, row)])
        drawn = self.step_times(pair)
        rates = _batches(pair) / (drawn * pair["world_size"].to_numpy(float))
        middle, shares = np.median(rates, axis=0), rates[:, 1] / rates[:, 0]
        # drawn about the ratio of the rates that a table shows
        value = float(middle[1] / middle[0])
        lo, hi = central(shares * (value / np.median(shares)), mass)
        return Interval(value=value, lo=float(lo), hi=float(hi)), scaling


def _batches(frame: pd.DataFrame) -> np.ndarray:
    return configurations(frame)["global_batch_size"].to_numpy(float)

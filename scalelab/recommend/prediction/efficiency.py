"""Scaling efficiency: samples per second and device, against the fewest measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import Interval
from scalelab.laws.interval import central
from scalelab.laws.rows import CONFIGURATION as CONFIG
from scalelab.laws.rows import CurveKey, FitRows, configurations, split_curves
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.answer.recommendation import Scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The smallest measured allocation.

    A row is compared with what it measured at the row's global batch, else with what
    was fastest there; with the row's own settings, if these were measured there.
    """

    world_size: int
    law: StepTimeLaw
    # Configurations on this allocation, by curve
    measured: Mapping[CurveKey, pd.DataFrame]

    @classmethod
    def of(cls, rows: FitRows, law: StepTimeLaw) -> Self:
        """Find the smallest allocation among the rows of an answer."""
        size = rows.frame["world_size"].min()
        found = {key: at[at["world_size"] == size] for key, at in rows.curves.items()}
        measured = {
            key: frame[[*CONFIG]].drop_duplicates().assign(**dict(key))
            for key, frame in found.items()
            if len(frame)
        }
        return cls(world_size=int(size), law=law, measured=measured)

    def compare(
        self, row: pd.DataFrame, mass: float
    ) -> tuple[Interval, Scaling | None]:
        """Return the efficiency of one configuration, and what it compares."""
        (key,), (size,) = split_curves(row), row["world_size"]
        own = [self.measured[key]] if key in self.measured else self.measured.values()
        known = pd.concat(own, ignore_index=True)
        totals, (total,) = _batches(known), _batches(row)
        known = known[(totals == total) | ~(totals == total).any()]
        times = np.median(self.law.sample(known, one_run=True), axis=0)
        base = known.iloc[[(_batches(known) / times).argmax()]]
        (of_base,) = _batches(base)
        is_weak = of_base * size == total * self.world_size
        scaling: Scaling | None = "weak" if is_weak else "other"
        if size == self.world_size:
            scaling = None
        elif of_base == total:
            scaling = "strong"
        if all(base[name].item() == row[name].item() for name in CONFIG):
            return Interval(value=1.0, lo=1.0, hi=1.0), scaling
        # what a curve does not name is no column of its row
        pair = pd.concat([each.dropna(axis=1) for each in (base, row)])
        drawn = self.law.sample(pair, one_run=True)
        rates = _batches(pair) / (drawn * pair["world_size"].to_numpy(float))
        middle, shares = np.median(rates, axis=0), rates[:, 1] / rates[:, 0]
        # drawn about the ratio of the rates that a table shows
        value = float(middle[1] / middle[0])
        lo, hi = central(shares * (value / np.median(shares)), mass)
        return Interval(value=value, lo=float(lo), hi=float(hi)), scaling


def _batches(frame: pd.DataFrame) -> np.ndarray:
    return configurations(frame)["global_batch_size"].to_numpy(float)

"""Scaling efficiency: samples per second and device, against the fewest measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import Interval
from scalelab.laws.interval import central
from scalelab.laws.rows import CONFIGURATION, FitRows, configurations, split_curves
from scalelab.recommend.answer.rows import Scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The smallest measured allocation.

    A row is compared with the fastest that was measured there at the row's global
    batch, else with the fastest of all.
    """

    world_size: int
    # Configurations that were measured there, the fastest first, and draws of the
    # samples per second of one run of each, shape (n_draws, n_measured)
    measured: pd.DataFrame
    rates: np.ndarray

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
        known = pd.concat(
            [rows_of_curve for rows_of_curve in found if len(rows_of_curve)],
            ignore_index=True,
        )
        return cls.at(known, step_times)

    @classmethod
    def at(
        cls, known: pd.DataFrame, step_times: Callable[[pd.DataFrame], np.ndarray]
    ) -> Self:
        """Return the baseline at measured configurations of one world size."""
        rates = _batches(known) / step_times(known)
        order = np.argsort(-np.median(rates, axis=0), kind="stable")
        return cls(
            world_size=int(known["world_size"].iloc[0]),
            measured=known.iloc[order],
            rates=rates[:, order],
        )

    def of_row(self, row: pd.DataFrame) -> int:
        """Return the place among the measured that a configuration is compared with."""
        (total,) = _batches(row)
        return int((_batches(self.measured) == total).argmax())

    def compare(
        self, row: pd.DataFrame, step_s: np.ndarray, mass: float
    ) -> tuple[Interval, Scaling | None]:
        """Return the efficiency of one configuration, and what it compares.

        ``step_s`` are draws of the step time of one run of it.
        """
        (total,), (size,), place = _batches(row), row["world_size"], self.of_row(row)
        base = self.measured.iloc[[place]]
        (of_base,) = _batches(base)
        is_weak = of_base * size == total * self.world_size

        scaling: Scaling | None = "weak" if is_weak else "other"
        if size == self.world_size:
            scaling = None
        elif of_base == total:
            scaling = "strong"

        at = [
            configuration[[*CONFIGURATION]].to_numpy(float).tolist()
            for configuration in (base, row)
        ]
        if at[0] == at[1] and [*split_curves(base)] == [*split_curves(row)]:
            return Interval(value=1.0, lo=1.0, hi=1.0), scaling

        rate = total / step_s / size
        others = self.rates[:, place] / self.world_size
        # drawn about the ratio of the rates that a table shows
        value, shares = float(np.median(rate) / np.median(others)), rate / others
        lo, hi = central(shares * (value / np.median(shares)), mass)
        return Interval(value=value, lo=float(lo), hi=float(hi)), scaling


def _batches(frame: pd.DataFrame) -> np.ndarray:
    return configurations(frame)["global_batch_size"].to_numpy(float)

"""Waiting for input: which part of a step it was where that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.laws.rows import CurveKey, FitRows, numbers, split_curves


@dataclass(frozen=True, kw_only=True)
class InputWait:
    """The measured shares of a step in which ranks waited for input.

    Parameters
    ----------
    curves
        For each curve its rows with ``world_size``, ``global_batch_size`` and
        ``share``, in [0, 1]; rows that do not record the wait are not among them.
    """

    curves: Mapping[CurveKey, pd.DataFrame]

    @classmethod
    def of(cls, rows: FitRows) -> InputWait:
        """Read the shares of the rows that a step-time law is fitted to."""
        wait_s = pd.Series(
            numbers(rows.observations, "data_wait_s"), rows.observations.index
        )
        return cls(
            curves={
                key: frame.assign(
                    share=wait_s[frame.index] / frame["step_time_s"]
                ).dropna(subset="share")
                for key, frame in rows.curves.items()
            }
        )

    def share(self, configuration: pd.DataFrame) -> float:
        """Return the share at a configuration; 0 where nothing was measured.

        Between measured world sizes it is interpolated over their logarithm, beyond
        them it stays as it is. Where the global batch was measured at some world size,
        only rows of that batch count.

        Parameters
        ----------
        configuration
            One row: the columns that tell curves apart, ``world_size`` and
            ``global_batch_size``.
        """
        (asked,) = map(dict, split_curves(configuration))
        for key, frame in self.curves.items():
            if all(asked.get(name, value) == value for name, value in key):
                return _share(frame, configuration)
        return 0.0


def _share(frame: pd.DataFrame, configuration: pd.DataFrame) -> float:
    alike = frame["global_batch_size"] == numbers(configuration, "global_batch_size")[0]
    medians = (frame[alike] if alike.any() else frame).groupby("world_size")["share"]
    if not len(frame):
        return 0.0
    shares = medians.median().sort_index()
    size = np.log(numbers(configuration, "world_size")[0])
    return float(np.interp(size, np.log(shares.index.to_numpy(float)), shares))

"""Waiting for input: which part of a step it was where that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.laws.rows import CurveKey, FitRows, configurations, numbers, split_curves


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
        """
        (asked,) = map(dict, split_curves(configuration))
        at = configurations(configuration).iloc[0]
        for key, frame in self.curves.items():
            is_same = all(asked.get(name, value) == value for name, value in key)
            if is_same and len(frame):
                return _share(frame, at["world_size"], at["global_batch_size"])
        return 0.0


def _share(frame: pd.DataFrame, world_size: float, global_batch_size: float) -> float:
    alike = frame[frame["global_batch_size"] == global_batch_size]
    measured = alike if len(alike) else frame
    shares = measured.groupby("world_size")["share"].median()
    sizes = np.log(shares.index.to_numpy(float))
    return float(np.interp(np.log(world_size), sizes, shares))

"""Checks of what a law is asked to predict: configurations that a run could have."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.laws.rows import CONFIGURATION, configurations, numbers


def checked_configurations(frame: pd.DataFrame) -> pd.DataFrame:
    """Complete configurations as :func:`configurations` does, and check each value."""
    completed = configurations(frame)
    for name in CONFIGURATION:
        values = completed[name].to_numpy()
        if name == "local_batch_size":
            known, rule = values > 0, "a positive number"
        else:
            known, rule = values >= 1, "1 or more"
        _refuse(completed, name, ~(np.isfinite(values) & known), rule)
    idle = completed["num_nodes"].to_numpy() > completed["world_size"].to_numpy()
    _refuse(completed, "num_nodes", idle, "world_size at most: every node has a device")
    return completed


def positive(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as positive, finite floats, shape (n_rows,)."""
    if name not in frame.columns and len(frame):
        known = sorted(map(str, frame.columns))[:12]
        raise SpecError(
            f"The configurations have the columns {known}, but the law needs {name}. "
            "Add that column."
        )
    values = numbers(frame, name)
    _refuse(frame, name, ~(np.isfinite(values) & (values > 0)), "a positive number")
    return values


def positive_if_given(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as :func:`positive` does, NaN where a value is missing."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values = numbers(frame, name)
    wrong = frame[name].notna().to_numpy(bool) & ~(np.isfinite(values) & (values > 0))
    _refuse(frame, name, wrong, "a positive number, or missing")
    return values


def _refuse(frame: pd.DataFrame, name: str, wrong: np.ndarray, rule: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise SpecError(
            f"{name}={frame[name].iloc[row]} (row {row + 1} of {len(frame)}) must be "
            f"{rule}. Correct the value."
        )

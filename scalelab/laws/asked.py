"""Read the numbers of a question; refuse those that no run could have."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.laws.rows import CONFIGURATION, configurations, numbers


def asked_configurations(frame: pd.DataFrame) -> pd.DataFrame:
    """Complete the configurations of a question, see :func:`configurations`.

    Raises
    ------
    SpecError
        A column is absent, a value is no positive number, or there are more nodes than
        devices.
    """
    completed = configurations(frame)
    for name in CONFIGURATION:
        values = completed[name].to_numpy()
        if name == "local_batch_size":
            known, rule = values > 0, "a positive number"
        else:
            known, rule = values >= 1, "1 or more"
        _refuse(completed, name, ~(np.isfinite(values) & known), rule)
    idle = completed["num_nodes"].to_numpy() > completed["world_size"].to_numpy()
    _refuse(completed, "num_nodes", idle, "world_size at most: a node has a device")
    return completed


def positive(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column of a question as positive, finite floats, shape (n_rows,).

    Raises
    ------
    SpecError
        The column is absent, or a value is something else.
    """
    if name not in frame.columns and len(frame):
        known = sorted(map(str, frame.columns))[:12]
        raise SpecError(f"The question has the columns {known}; it needs {name}.")
    values = numbers(frame, name)
    _refuse(frame, name, ~(np.isfinite(values) & (values > 0)), "a positive number")
    return values


def positive_if_given(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return the same of a column that may be absent or have gaps, there NaN."""
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
            f"{rule}. Ask about what a run could have."
        )

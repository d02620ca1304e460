"""Contradicting repeats: runs of one configuration with very different step times."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.laws.rows import CONFIGURATION, FitRows, curve_columns

_APART = 2.0  # longest over shortest; what shares a machine stays below


def contradictions(rows: FitRows) -> pd.DataFrame:
    """Return the configurations whose runs contradict one another, the worst first."""
    what = [*curve_columns(rows.frame), *CONFIGURATION]
    times = rows.frame.groupby(what, dropna=False, sort=False)["step_time_s"]
    found = times.agg(num_runs="count", least_s="min", most_s="max").reset_index()
    factor = found["most_s"] / found["least_s"]
    order = factor[factor >= _APART].sort_values(ascending=False, kind="stable").index
    return found.loc[order].reset_index(drop=True)


def is_among(asked: pd.DataFrame, found: pd.DataFrame) -> np.ndarray:
    """Tell which configurations are among those found, shape (n_rows,)."""
    what = [*curve_columns(asked), *CONFIGURATION]
    shared = [name for name in what if name in found.columns]
    known = found[shared].astype(object).drop_duplicates()
    matched = asked[shared].astype(object).merge(known, how="left", indicator=True)
    return (matched["_merge"] == "both").to_numpy(bool)

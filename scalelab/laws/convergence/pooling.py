"""Pooled or split: whether settings have a convergence curve each, as the rows show.

Both are asked to predict log samples of rows that are left out, from the other rows at
the same batch: pooled, by their mean; split, by their mean times a factor of the
setting. With a linear model that needs no further fit: the error of a row that is left
out is its residual over one minus its leverage.

References
----------
Hastie et al. 2009, *The Elements of Statistical Learning*, equation 7.52 (leaving one
out of a linear fit).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.laws.rows import strategies
from scalelab.records.columns import OPTION_PREFIX

_MISSED = np.log(2.0)  # a run that missed its target counts as twice as long
_LEAST = 1e-6  # one minus leverage, below which nothing is left to predict from


def split_by(
    rows: pd.DataFrame, settings: Iterable[str], curve: Sequence[str]
) -> list[str]:
    """Return the settings that tell curves apart; the others are pooled.

    Parameters
    ----------
    rows
        The runs to a target: ``samples`` (to the target, or trained when the run
        stopped before it), ``censored``, ``global_batch_size`` and the columns named.
    settings
        The columns in question.
    curve
        The columns that tell curves apart in any case.

    Returns
    -------
    list of str
        Those whose factor predicts rows that are left out better than none does, and
        those whose values have no batch in common, which nothing can compare.
    """
    found: list[str] = []
    logs = np.log(rows["samples"].to_numpy(float))
    logs = logs + _MISSED * rows["censored"].to_numpy(bool)
    for name in settings:
        values = _indicators(rows, [name])
        places = _indicators(rows, [*curve, *found, "global_batch_size"])
        if values.shape[1] > 1 and _is_better_split(logs, places, values):
            found.append(name)
    return found


def _indicators(rows: pd.DataFrame, names: list[str]) -> np.ndarray:
    groups = rows.groupby(names, dropna=False, sort=False).ngroup().to_numpy()
    return np.eye(groups.max() + 1)[groups]


def _is_better_split(logs: np.ndarray, places: np.ndarray, values: np.ndarray) -> bool:
    both = np.hstack([places, values])
    if np.linalg.matrix_rank(both) == np.linalg.matrix_rank(places):
        return True
    (pooled, is_told), (split, is_told_split) = (
        _left_out(logs, design) for design in (places, both)
    )
    is_told_apart = is_told & is_told_split
    squares = [float((errors[is_told_apart] ** 2).sum()) for errors in (split, pooled)]
    return not is_told_apart.any() or squares[0] < squares[1]


def _left_out(logs: np.ndarray, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of each row were it left out, and whether it can be told."""
    projection = design @ np.linalg.pinv(design)
    free = 1 - np.diag(projection)
    return (logs - projection @ logs) / np.maximum(free, _LEAST), free > _LEAST


def settings_in_question(frame: pd.DataFrame) -> list[str]:
    """Return the options that are neither of a strategy nor of a layout."""
    of_strategies = {
        axis for strategy in set(strategies(frame)) for axis in strategy.options
    }
    known = {*of_strategies, *LAYOUT_PLACEHOLDERS}
    names = map(str, frame.columns)
    options = (name for name in names if name.startswith(OPTION_PREFIX))
    return sorted(n for n in options if n.removeprefix(OPTION_PREFIX) not in known)

"""The accuracy gap: what training on several devices changes in the final metric."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.laws.rows import altering_options, cells, numbers, strategies
from scalelab.records.columns import OPTION_PREFIX

ACCURACY_GAP = "accuracy_gap"
_SAME = (
    "workload",
    "code_hash",
    "dataset",
    "precision",
    "sequence_length",
    "target_metric",
    "num_samples",
    "global_batch_size",
    "seed",
)


def with_accuracy_gaps(observations: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``accuracy_gap``: the final metric minus that of one process.

    Runs are paired: the one process, whatever its strategy, if that trains the plain
    model on one rank, has seen as many samples, with the same global batch, seed, data,
    precision and workload. A trial that stopped at a target has seen as many only by
    chance: give trials a number of epochs and no target to compare them so.
    """
    metric, keys = numbers(observations, "final_metric"), _keys(observations)
    metric[~np.isfinite(numbers(observations, "num_samples"))] = np.nan
    is_alone = numbers(observations, "world_size") == 1
    alters = np.array([bool(each) for each in altering_options(observations)], bool)
    is_plain = is_alone & ~alters
    alone = pd.Series(metric[is_plain]).groupby(keys[is_plain]).mean()
    gap = metric - pd.Series(keys).map(alone).to_numpy(dtype=float)
    gap[is_alone] = np.nan
    return observations.assign(**{ACCURACY_GAP: gap})


def _keys(observations: pd.DataFrame) -> np.ndarray:
    """Return, for each row, all that a pair has in common, as one text."""
    used = {strategy.name: strategy for strategy in strategies(observations)}.values()
    of_strategies = {OPTION_PREFIX + axis for each in used for axis in each.options}
    options = [
        name
        for name in map(str, observations.columns)
        if name.startswith(OPTION_PREFIX) and name not in of_strategies
    ]
    columns = [cells(observations, name) for name in (*_SAME, *options)]
    keys = [repr(key) for key in zip(*columns, strict=True)]
    return np.array(keys, dtype=object)

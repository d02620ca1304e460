"""Which splits of a batch the program of a curve can run, and the law can tell of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set

import numpy as np
import pandas as pd

from scalelab.experiment.command_values import Untold
from scalelab.laws.rows import CurveKey
from scalelab.records.columns import OPTION_PREFIX, PROGRAM_COLUMN

Split = tuple[int, int]
"""Local batch and accumulated passes."""
UntoldByProgram = Mapping[str | None, Set[Untold]]
"""What the command of each program is not told of; programs that are told have none."""
# Parameters that every pass gathers: all passes exchange, and not the last alone
_SHARDED = re.compile(r"fsdp|full_shard|zero[\s_-]*(stage)?[\s_-]*3")


def runnable(
    splits: Sequence[Split],
    data_parallel_size: int,
    measured: pd.DataFrame,
    key: CurveKey,
    untold: UntoldByProgram,
) -> list[Split]:
    """Return the splits that a further trial of the curve could run.

    A program that is not told of a value runs as it did: with the measured local
    batches, or the one global batch that all trials had; with the measured numbers of
    passes. Where the parameters themselves are sharded among several ranks, these are
    all that is known of accumulation, too.
    """
    missing = untold.get(_program(key), frozenset())
    passes, locals_, totals = (
        {*np.ceil(measured[name]).astype(int)}
        for name in (
            *("gradient_accumulation_steps", "local_batch_size"),
            "global_batch_size",
        )
    )
    found = list(splits)
    gathers = data_parallel_size > 1 and _is_sharded(key)
    if Untold.ACCUMULATION in missing or gathers:
        found = [each for each in found if each[1] in passes]
    if Untold.LOCAL_BATCH not in missing:
        return found
    if len(totals) == 1:
        return [each for each in found if np.prod(each) * data_parallel_size in totals]
    return [each for each in found if each[0] in locals_]


def _program(key: CurveKey) -> str | None:
    name = dict(key).get(PROGRAM_COLUMN)
    return None if name is None else str(name)


def _is_sharded(key: CurveKey) -> bool:
    return any(
        _SHARDED.search(f"{name.removeprefix(OPTION_PREFIX)} {value}".lower())
        for name, value in key
    )

"""Which splits of a batch the program of a curve can run, and the law can tell of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Runnable:
    """What a further trial of a curve could run.

    A program that does not get a value runs as it did: with the measured local batches,
    or the one global batch that all trials had; with the measured numbers of passes.
    Where the parameters themselves are sharded among several ranks, these are all that
    is known of accumulation, too.
    """

    missing: Set[Untold]
    gathers: bool
    passes: Set[int]
    local_batches: Set[int]
    global_batches: Set[int]

    @classmethod
    def of(
        cls, measured: pd.DataFrame, key: CurveKey, untold: UntoldByProgram
    ) -> Runnable:
        """Read off the rows of a curve what its program ran."""
        program = dict(key).get(PROGRAM_COLUMN)
        passes, local_batches, global_batches = (
            {*np.ceil(measured[name]).astype(int)}
            for name in (
                *("gradient_accumulation_steps", "local_batch_size"),
                "global_batch_size",
            )
        )
        return cls(
            missing=untold.get(None if program is None else str(program), frozenset()),
            gathers=any(
                _SHARDED.search(f"{name.removeprefix(OPTION_PREFIX)} {value}".lower())
                for name, value in key
            ),
            passes=passes,
            local_batches=local_batches,
            global_batches=global_batches,
        )

    def among(self, splits: Sequence[Split], data_parallel_size: int) -> list[Split]:
        """Return the splits that could run."""
        found = list(splits)
        gathers = data_parallel_size > 1 and self.gathers
        if Untold.ACCUMULATION in self.missing or gathers:
            found = [each for each in found if each[1] in self.passes]
        if Untold.LOCAL_BATCH not in self.missing:
            return found
        if len(self.global_batches) == 1:
            return [
                each
                for each in found
                if each[0] * each[1] * data_parallel_size in self.global_batches
            ]
        return [each for each in found if each[0] in self.local_batches]

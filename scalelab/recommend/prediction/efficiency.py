"""Scaling efficiency: device-hours of a baseline at the same batch over a row's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import Interval, counted
from scalelab.laws.interval import central
from scalelab.laws.rows import CONFIGURATION
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.question.batches import next_divisor

# A baseline whose time is open by more than this factor is nothing to compare with
_MASS, _MOST_OPEN = 0.8, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """The scaling efficiency of every row against one baseline.

    The baseline is one full node if there are rows on several nodes, else the smallest
    row. It computes the global batch of the row on its own devices, by gradient
    accumulation, so that another batch is no gain or loss of scale.
    """

    baseline: int
    name: str
    # shape (n_draws, n_rows): device-hours of the baseline over those of the row; NaN
    # where the devices of the baseline cannot share the batch of the row, or their time
    # for it is open
    draws: np.ndarray

    @classmethod
    def of(
        cls, frame: pd.DataFrame, asked: pd.DataFrame, law: StepTimeLaw, word: str
    ) -> Efficiency:
        """Compare each row with the baseline at its batch."""
        index, name = _baseline(frame, word)
        parts = [_at_baseline(frame, asked, i, index) for i in range(len(frame))]
        for i, part in enumerate(parts):
            gaps = () if part is None else law.gaps_at(part)
            if any("compute_fixed" in gap.parameters for gap in gaps):
                parts[i] = None  # one local batch was measured, and this is another one
        parts[index] = asked.iloc[[index]]
        known = np.array([i for i, part in enumerate(parts) if part is not None])
        base = pd.concat([part for part in parts if part is not None])
        every = pd.concat([asked, base], ignore_index=True)
        times = law.sample(every) * every["world_size"].to_numpy(float)
        of_base = times[:, len(frame) :]
        lo, hi = central(of_base, _MASS)
        of_base[:, hi > _MOST_OPEN * lo] = np.nan
        draws = np.full((len(times), len(frame)), np.nan)
        draws[:, known] = of_base / times[:, known]
        draws[:, index] = 1.0
        return cls(baseline=index, name=name, draws=draws)

    def of_row(self, index: int, mass: float) -> Interval | None:
        """Return the efficiency of a row with its interval; None: not known."""
        draws = self.draws[:, index]
        return between(draws, mass) if np.isfinite(draws).all() else None


def between(draws: np.ndarray, mass: float) -> Interval:
    """Return the median of draws with their central interval."""
    lo, hi = central(draws, mass)
    return Interval(value=float(np.median(draws)), lo=float(lo), hi=float(hi))


def _baseline(frame: pd.DataFrame, device_word: str) -> tuple[int, str]:
    nodes, sizes = frame["num_nodes"], frame["world_size"]
    full = np.flatnonzero((nodes == 1) & (sizes == np.ceil(sizes / nodes).max()))
    if nodes.max() > 1 and len(full):
        return int(full[0]), "one full node"
    return 0, counted(int(sizes.iloc[0]), device_word)


def _at_baseline(
    frame: pd.DataFrame, asked: pd.DataFrame, index: int, baseline: int
) -> pd.DataFrame | None:
    """Return the configuration of the baseline's devices at the batch of a row."""
    base, total = frame.iloc[baseline], int(frame["global_batch_size"].iloc[index])
    per_rank, rest = divmod(total, int(base["data_parallel_size"]))
    if rest:
        return None
    local = int(base["local_batch_size"])
    passes = next_divisor(per_rank, -(-per_rank // local))
    numbers = (
        *(base["world_size"], base["num_nodes"]),
        *(per_rank // passes, passes, base["data_parallel_size"]),
    )
    values = dict(zip(CONFIGURATION, map(int, numbers), strict=True))
    # Its devices cannot be divided as those of a row with other replicas are.
    replicas = frame["world_size"] / frame["data_parallel_size"]
    like = index if replicas.iloc[index] == replicas.iloc[baseline] else baseline
    return asked.iloc[[like]].assign(**values)

"""The next trial: the measurement with the largest expected value of information.

The value of knowing a row's step time is the average gain of the best choice if that
time were known (expected value of partial perfect information). It is estimated from
the draws, sorted by that row's time.

References
----------
Strong et al. 2014, *Estimating multiparameter partial expected value of perfect
information from a probabilistic sensitivity analysis sample*, Medical Decision
Making 34.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Support
from scalelab.laws.rows import numbers
from scalelab.laws.support import Gap
from scalelab.recommend.answer.recommendation import NextTrial
from scalelab.recommend.answer.rows import BatchPlan, OutlookRow
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.consistency import is_among
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.candidates import allocation_label
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending

_NUM_BINS = 8
_WORTH = 0.03  # of the loss; a smaller gain does not justify a measurement
_NEAR = 0.95  # of the largest gain: among these, whole nodes and little cost count
# Chance of holding the limits, and of taking less, below which nothing is decided
_LIKELY = 0.05
_AFFORDABLE = 0.1  # of the job's device-hours; a dearer trial saves nothing
_USUAL_STEPS = 60
_DECIDES = "its step time decides between the best allocations"
_DOUBTED = "what was measured there is doubted"
_CONTRADICTED = "its runs contradict one another"
_UNEVEN = "it does not fit the other rows"
_ONCE = "it was measured once"
_NOT_MEASURED = "the recommended allocation was not measured"


def loss(spent: Spending, sizes: np.ndarray, limits: Constraints) -> np.ndarray:
    """Return the loss of choosing each row, by draw, shape (n_draws, n_rows).

    With limits the loss is the amount of the resource that is minimised; a row that
    breaks a limit has a larger loss than every row that holds it. Without limits the
    loss is the number of doublings away from the knee.
    """
    if not limits.limited:
        knee = last_paying(spent.time_s, sizes, limits.min_marginal_return)
        return np.asarray(np.abs(np.log2(sizes / sizes[knee][:, None])))
    value = spent.of(limits.minimised(spent.known))
    value = value / np.median(value, axis=0).min()
    excess = np.minimum(limits.excess(spent), 10.0)
    broken = value.max(axis=1, keepdims=True) + excess
    return np.asarray(np.where(limits.held(spent), value, broken))


def value_of_knowing(
    losses: np.ndarray, time_s: np.ndarray, eligible: np.ndarray
) -> np.ndarray:
    """Return the expected gain of knowing each row's time, shape (n_rows,)."""
    base = losses.mean(axis=0)[eligible].min()
    gains = []
    for row, column in enumerate(np.argsort(time_s, axis=0).T):
        open_to = eligible | (np.arange(len(eligible)) == row)
        bins = np.array_split(losses[column][:, open_to], _NUM_BINS)
        informed = [len(part) * part.mean(axis=0).min() for part in bins]
        gains.append(base - sum(informed) / len(losses))
    return np.array(gains)


def next_trial(
    rows: tuple[OutlookRow, ...],
    at: int,
    outlook: Outlook,
    knowledge: Knowledge,
    limits: Constraints,
    gaps: tuple[Gap, ...],
    within: Allocation | None,
    *,
    is_open: bool,
) -> NextTrial | None:
    """Return the most useful measurement; None: no single one would change the answer.

    ``at`` is the index of the chosen row. Where the choice is open between draws, what
    was measured once may be measured again.
    """
    trials = _Trials.of(knowledge.subject.frame)
    doubted = knowledge.rows.frame.loc[knowledge.doubted.index]
    is_contradicted = is_among(outlook.frame, knowledge.contradicted)
    can_run = np.array([_fits(row, within) for row in rows])

    chosen = rows[at]
    if can_run[at] and is_among(outlook.frame, doubted)[at]:
        return trials.measuring(chosen, _DOUBTED)
    if can_run[at] and is_contradicted[at]:
        return trials.measuring(chosen, _CONTRADICTED)

    uneven = knowledge.rows.frame.loc[[*knowledge.uneven]]
    for odd, why in ((doubted, _DOUBTED), (uneven, _UNEVEN)):
        if (again := can_run & is_among(outlook.frame, odd)).any():
            return trials.measuring(rows[again.argmax()], why)

    is_known = np.array([row.basis == Support.MEASURED for row in rows])
    is_once = is_open & is_known & (outlook.frame["num_repeats"] == 1).to_numpy()
    could_win = is_contradicted | ~is_known | is_once
    could_win &= outlook.is_allowed_batch & can_run
    affordable = _AFFORDABLE * chosen.gpu_hours.value
    could_win &= [
        _is_likely(row) and trials.hours(row, row.step_time_s.value) <= affordable
        for row in rows
    ]

    best = _deciding(rows, at, outlook, limits, could_win, trials)
    if best is not None:
        why = _CONTRADICTED if is_contradicted[best] else _DECIDES
        return trials.measuring(rows[best], _ONCE if is_once[best] else why)

    if can_run[at] and not is_known[at] and _is_likely(chosen):
        return trials.measuring(chosen, _NOT_MEASURED)

    closable = [gap for gap in gaps if _fits(gap, within)]
    return trials.closing(closable[0], rows) if closable else None


def _deciding(
    rows: tuple[OutlookRow, ...],
    at: int,
    outlook: Outlook,
    limits: Constraints,
    could_win: np.ndarray,
    trials: _Trials,
) -> int | None:
    """Return the row whose time is worth most to know; None: none is worth a trial."""
    if limits.limited and (rows[at].probability or 0.0) >= limits.confidence:
        spent = outlook.spent.of(limits.minimised(outlook.spent.known))
        could_win = could_win & ((spent < spent[:, [at]]).mean(axis=0) >= _LIKELY)

    losses = loss(outlook.spent, outlook.sizes, limits)
    eligible = np.array([row.is_eligible or row.is_chosen for row in rows])
    # a trial tells nothing of interruptions
    told_s = outlook.spent.time_s - outlook.interruptions_s
    gain = value_of_knowing(losses, told_s, eligible)

    gain = np.where(could_win, gain, 0.0)
    if gain.max() <= _WORTH * max(losses.mean(axis=0).min(), 1.0):
        return None

    per_node = max(-(-row.world_size // row.num_nodes) for row in rows)

    def cost(index: int) -> tuple[bool, float]:
        row = rows[index]
        is_part = row.world_size % per_node > 0 and row.num_nodes > 1
        return is_part, trials.hours(row, row.step_time_s.value)

    return min(map(int, np.flatnonzero(gain >= _NEAR * gain.max())), key=cost)


def _is_likely(row: OutlookRow) -> bool:
    return row.probability is None or row.probability >= _LIKELY


def _fits(asked: OutlookRow | Gap, within: Allocation | None) -> bool:
    return within is None or within.holds(asked.world_size, asked.num_nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trials:
    """What a further trial takes: the usual steps and start-up of those there are."""

    steps: int
    start_up_s: float

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _Trials:
        counts, start_up = numbers(frame, "num_steps"), numbers(frame, "start_up_s")
        if "kind" in frame.columns:
            counts = counts[frame["kind"].eq("throughput").fillna(False).to_numpy(bool)]

        counts, start_up = (
            values[np.isfinite(values)] for values in (counts, start_up)
        )
        return cls(
            steps=round(float(np.median(counts))) if len(counts) else _USUAL_STEPS,
            start_up_s=float(np.median(start_up)) if len(start_up) else 0.0,
        )

    def hours(self, row: OutlookRow | Gap, step_time_s: float) -> float:
        return row.world_size * (self.steps * step_time_s + self.start_up_s) / 3600

    def measuring(self, row: OutlookRow, why: str) -> NextTrial:
        return NextTrial(
            allocation=row.allocation,
            world_size=row.world_size,
            batch=row.batch,
            steps=self.steps,
            gpu_hours=self.hours(row, row.step_time_s.value),
            why=why,
            settings=row.settings,
        )

    def closing(self, gap: Gap, rows: tuple[OutlookRow, ...]) -> NextTrial:
        # it is assumed to be the slowest one
        longest = max(row.step_time_s.value for row in rows)
        return NextTrial(
            allocation=allocation_label(gap.world_size, gap.num_nodes),
            world_size=gap.world_size,
            batch=BatchPlan(
                local_batch_size=gap.local_batch_size,
                data_parallel_size=gap.data_parallel_size,
                gradient_accumulation_steps=1,
                global_batch_size=gap.local_batch_size * gap.data_parallel_size,
            ),
            steps=self.steps,
            gpu_hours=self.hours(gap, longest),
            why=gap.why,
            settings=next(row.settings for row in rows if row.is_chosen),
        )

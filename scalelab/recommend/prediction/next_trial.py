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

import numpy as np
import pandas as pd

from scalelab.inputs.allocation import Allocation
from scalelab.inputs.support import Support
from scalelab.laws.rows import numbers
from scalelab.laws.support import Gap
from scalelab.recommend.answer.recommendation import BatchPlan, NextTrial, OutlookRow
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.candidates import allocation_label
from scalelab.recommend.question.objective import Constraints, Spending

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


def loss(spent: Spending, sizes: np.ndarray, limits: Constraints) -> np.ndarray:
    """Return the loss of choosing each row, by draw, shape (n_draws, n_rows).

    With limits the loss is the amount of the resource that is minimised; a row that
    breaks a limit has a larger loss than every row that holds it. Without limits the
    loss is the number of doublings away from the knee.
    """
    if not limits.any_limit:
        knee = last_paying(spent.time_s, sizes, limits.min_marginal_return)
        return np.asarray(np.abs(np.log2(sizes / sizes[knee][:, None])))
    value = spent.of(limits.minimised(spent.known))
    scale = np.median(value, axis=0).min()
    largest = (value / scale).max(axis=1, keepdims=True)
    excess = np.minimum(limits.excess(spent), 10.0)
    broken = largest + excess
    held = limits.held(spent)
    return np.asarray(np.where(held, value / scale, broken))


def value_of_knowing(
    losses: np.ndarray, time_s: np.ndarray, eligible: np.ndarray
) -> np.ndarray:
    """Return the expected gain of knowing each row's time, shape (n_rows,)."""
    base = losses.mean(axis=0)[eligible].min()
    gains = []
    for row, column in enumerate(np.argsort(time_s, axis=0).T):
        open_to = eligible.copy()
        open_to[row] = True
        bins = np.array_split(losses[column][:, open_to], _NUM_BINS)
        informed = [len(part) * part.mean(axis=0).min() for part in bins]
        gains.append(base - sum(informed) / len(losses))
    return np.array(gains)


def next_trial(
    rows: tuple[OutlookRow, ...],
    outlook: Outlook,
    is_contradicted: np.ndarray,
    is_doubted: np.ndarray,
    limits: Constraints,
    gaps: tuple[Gap, ...],
    frame: pd.DataFrame,
    within: Allocation | None,
) -> NextTrial | None:
    """Return the most useful measurement; None if none would change the answer."""
    steps = _usual_steps(frame)
    position = next(i for i, row in enumerate(rows) if row.is_chosen)
    chosen = rows[position]
    if is_doubted[position] and _fits(chosen, within):
        return _measuring(chosen, steps, frame, _DOUBTED)
    losses = loss(outlook.spent, outlook.sizes, limits)
    is_known = np.array([row.basis == Support.MEASURED for row in rows])
    could_win = outlook.is_allowed_batch & (is_contradicted | ~is_known)
    could_win &= np.array([_fits(row, within) for row in rows])
    could_win &= np.array([_is_worth_it(row, chosen, steps, frame) for row in rows])
    eligible = np.array([row.is_eligible or row.is_chosen for row in rows])
    if limits.any_limit and (chosen.probability or 0.0) >= limits.confidence:
        spent = outlook.spent.of(limits.minimised(outlook.spent.known))
        could_win &= (spent < spent[:, [position]]).mean(axis=0) >= _LIKELY
    gain = value_of_knowing(losses, outlook.spent.time_s, eligible)
    gain = np.where(could_win, gain, 0.0)
    if gain.max() > _WORTH * max(losses.mean(axis=0).min(), 1.0):
        per_node = max(-(-row.world_size // row.num_nodes) for row in rows)
        near = [rows[i] for i in np.flatnonzero(gain >= _NEAR * gain.max())]
        costs = [
            (
                row.world_size % per_node > 0 and row.num_nodes > 1,
                _hours(row.world_size, steps, row.step_time_s.value, frame),
            )
            for row in near
        ]
        best = near[costs.index(min(costs))]
        why = _CONTRADICTED if is_contradicted[rows.index(best)] else _DECIDES
        return _measuring(best, steps, frame, why)
    is_open = chosen.basis != Support.MEASURED and _is_likely(chosen)
    if is_open and _fits(chosen, within):
        return _measuring(
            chosen, steps, frame, "the recommended allocation was not measured"
        )
    if is_contradicted[position] and _fits(chosen, within):
        return _measuring(chosen, steps, frame, _CONTRADICTED)
    closable = [gap for gap in gaps if _fits(gap, within)]
    return _closing(closable[0], rows, steps, frame) if closable else None


def _is_worth_it(
    row: OutlookRow, chosen: OutlookRow, steps: int, frame: pd.DataFrame
) -> bool:
    """Tell whether a row may hold the limits, and its trial costs little of the job."""
    trial_hours = _hours(row.world_size, steps, row.step_time_s.value, frame)
    return _is_likely(row) and trial_hours <= _AFFORDABLE * chosen.gpu_hours.value


def _is_likely(row: OutlookRow) -> bool:
    return row.probability is None or row.probability >= _LIKELY


def _fits(asked: OutlookRow | Gap, within: Allocation | None) -> bool:
    """Tell whether there are enough devices and nodes for a measurement."""
    return within is None or (
        asked.world_size <= within.world_size and asked.num_nodes <= within.num_nodes
    )


def _measuring(row: OutlookRow, steps: int, frame: pd.DataFrame, why: str) -> NextTrial:
    return NextTrial(
        allocation=row.allocation,
        world_size=row.world_size,
        batch=row.batch,
        steps=steps,
        gpu_hours=_hours(row.world_size, steps, row.step_time_s.value, frame),
        why=why,
        settings=row.settings,
    )


def _closing(
    gap: Gap,
    rows: tuple[OutlookRow, ...],
    steps: int,
    frame: pd.DataFrame,
) -> NextTrial:
    """Return the trial that closes a gap; it is assumed to be the slowest one."""
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
        steps=steps,
        gpu_hours=_hours(gap.world_size, steps, longest, frame),
        why=gap.why,
    )


def _usual_steps(frame: pd.DataFrame) -> int:
    counts = numbers(frame, "num_steps")
    if "kind" in frame.columns:
        is_short = (frame["kind"] == "throughput").fillna(False).to_numpy(bool)
        counts = counts[is_short]
    known = counts[np.isfinite(counts)]
    return round(float(np.median(known))) if len(known) else _USUAL_STEPS


def _hours(size: int, steps: int, step_time_s: float, frame: pd.DataFrame) -> float:
    start_up = numbers(frame, "start_up_s")
    known = start_up[np.isfinite(start_up)]
    waiting = float(np.median(known)) if len(known) else 0.0
    return size * (steps * step_time_s + waiting) / 3600

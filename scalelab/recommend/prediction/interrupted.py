"""The outlook of a job whose nodes may be taken away."""

from dataclasses import replace

import numpy as np

from scalelab.laws.rows import strategies
from scalelab.recommend.money.interruptions import (
    MOST_TIMES,
    Interruptions,
    simulated,
)
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.objective import Constraints

_ROUNDING = 1e-9
_MOSTLY = 0.5  # share of the draws in which a row that is kept ends


def interrupted(outlook: Outlook, limits: Constraints, terms: Interruptions) -> Outlook:
    """Return the same rows with what interruptions cost; those that end at all.

    What interruptions cost before, on other terms, is taken out.
    """
    frame = outlook.frame
    nodes = frame["num_nodes"].to_numpy(float)
    is_gang = np.array([way.is_synchronous for way in strategies(frame)], dtype=bool)
    never = ~np.isfinite(outlook.spent.time_s)  # a target that is not reached
    work_s = np.where(never, 1.0, outlook.spent.time_s - outlook.interruptions_s)
    time_s, charged_s = simulated(work_s, nodes, is_gang, terms)
    ends = time_s < MOST_TIMES * work_s * (1 - _ROUNDING)
    beside_s = time_s - work_s
    more_s = np.median(beside_s, axis=0) - np.median(outlook.interruptions_s, axis=0)
    time_s, charged_s = (
        np.where(never, np.inf, seconds) for seconds in (time_s, charged_s)
    )
    spent = limits.spending(time_s, outlook.sizes, nodes, charged_s)
    spent = replace(spent, is_mean=np.ones(len(nodes), dtype=bool))
    changed = replace(
        outlook,
        interruptions_s=beside_s,
        expected_s=outlook.expected_s + more_s,
        spent=spent,
        held=limits.held(spent) & outlook.reached,
    )
    return changed.take(ends.mean(axis=0) > _MOSTLY)

"""Rows whose step time differs from the one that the program's own rate says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scalelab.laws.rows import FitRows, numbers
from scalelab.plan.first_check import DOUBTED_BEYOND, RATE_DISAGREES
from scalelab.recommend.answer.facts import Fact, Kind

_BEYOND = np.log(DOUBTED_BEYOND)


def disagreeing_rates(rows: FitRows) -> Iterator[Fact]:
    """Note both figures of the rows whose two clocks differ most.

    A row that is marked for it is left out: a count by a factor of the batch is wrong.
    Of others the measured wall time counts.
    """
    frame = rows.observations
    ours, own = numbers(frame, "step_time_s"), numbers(frame, "reported_step_time_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(ours / own))
    marked = np.array([RATE_DISAGREES in str(reason) for reason in rows.reasons])
    used = np.array(rows.reasons == "", dtype=bool)
    for are_asked, is_left_out in ((marked, True), (used, False)):
        asked = np.flatnonzero(are_asked & (apart > _BEYOND))
        if not len(asked):
            continue
        at = asked[np.argmax(apart[asked])]
        values = {
            "num_trials": len(asked),
            "world_size": int(numbers(frame, "world_size")[at]),
            "global_batch_size": int(numbers(frame, "global_batch_size")[at]),
            "reported_step_time_s": float(own[at]),
            "step_time_s": float(ours[at]),
            "is_left_out": is_left_out,
        }
        yield Fact(Kind.OWN_RATE_DIFFERS, values)

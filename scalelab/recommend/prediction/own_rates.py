"""Rows whose step time differs from the one that the program's own rate says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scalelab.inputs.numerals import counted, duration
from scalelab.laws.rows import FitRows, numbers
from scalelab.plan.first_check import DOUBTED_BEYOND, RATE_DISAGREES

_BEYOND = np.log(DOUBTED_BEYOND)


def disagreeing_rates(rows: FitRows, device_word: str) -> Iterator[str]:
    """Say both figures of the rows whose two clocks differ most.

    A row that is marked for it is left out: a count by a factor of the batch is wrong.
    Of others the measured wall time counts.
    """
    frame = rows.observations
    ours, own = numbers(frame, "step_time_s"), numbers(frame, "reported_step_time_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(ours / own))
    marked = np.array([RATE_DISAGREES in str(reason) for reason in rows.reasons])
    used = np.array(rows.reasons == "", dtype=bool)
    for are_asked, then in (
        (marked, "One of the two does not count optimiser steps: left out."),
        (used, "Its clock leaves something out or adds it; the answer uses wall time."),
    ):
        asked = np.flatnonzero(are_asked & (apart > _BEYOND))
        if not len(asked):
            continue
        at = asked[np.argmax(apart[asked])]
        size, batch = (
            int(numbers(frame, name)[at])
            for name in ("world_size", "global_batch_size")
        )
        yield (
            f"The program's own rate differs in {counted(len(asked), 'trial')}. On "
            f"{counted(size, device_word)}, global batch {batch:,}, it prints "
            f"{batch / own[at]:.3g} samples/s ({duration(own[at])} a step), ScaleLab "
            f"read {batch / ours[at]:.3g} ({duration(ours[at])}). {then}"
        )

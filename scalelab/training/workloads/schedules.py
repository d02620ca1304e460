"""Shapes of the learning rate over training that built-in workloads offer."""

from __future__ import annotations

import math

from scalelab.errors import SpecError

SCHEDULES = ("constant", "cosine")


def check_schedule(schedule: str) -> None:
    """Refuse a schedule that does not exist."""
    if schedule not in SCHEDULES:
        raise SpecError(f"schedule={schedule!r} must be one of {SCHEDULES}.")


def schedule_factor(schedule: str, fraction: float) -> float:
    """Return the factor on the learning rate: 1, or half a cosine from 1 to 0."""
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * fraction)) / 2

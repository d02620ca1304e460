"""Start, end and duration of an attempt, and how long it held its devices."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from scalelab.records.attempt import AttemptResult, AttemptSpec

# The wall clock and the monotonic one may differ by this much over an attempt.
_CLOCK_TOLERANCE_S = 1.0


class Timing:
    """Measures an attempt by the wall clock and the monotonic clock, from now on.

    Attributes
    ----------
    ready_s
        When rank 0 began its first step, by the monotonic clock; None where that is
        not known.
    """

    def __init__(self) -> None:
        self._started_at = datetime.now(UTC)
        self._started_s = time.monotonic()
        self.ready_s: float | None = None

    def complete(
        self, spec: AttemptSpec, node_rank: int, result: AttemptResult
    ) -> AttemptResult:
        """Return the result with hosts, times and held device-seconds added."""
        ended_at = datetime.now(UTC)
        elapsed_s = time.monotonic() - self._started_s
        known: dict[str, Any] = {"hosts": [socket.gethostname()]}
        if node_rank == 0:
            known["started_at"] = self._started_at.isoformat()
            known["ended_at"] = ended_at.isoformat()
            known["allocated_gpu_s"] = elapsed_s * spec.placement.world_size
            if self.ready_s is not None:
                known["start_up_s"] = self.ready_s - self._started_s
        result = replace(result, measurements={**result.measurements, **known})
        drift_s = (ended_at - self._started_at).total_seconds() - elapsed_s
        if abs(drift_s) > _CLOCK_TOLERANCE_S:
            return with_validity(result, "unsteady_clock")
        return result


def with_validity(result: AttemptResult, reason: str) -> AttemptResult:
    """Return the result with one more reason that excludes it from fits."""
    known = result.measurements.get("validity", ())
    measurements = {**result.measurements, "validity": [*known, reason]}
    return replace(result, measurements=measurements)

"""Limit the device time that a run may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalelab.experiment.fingerprint import words_of_run

if TYPE_CHECKING:
    from scalelab.records.store import RunStore
    from scalelab.scheduling.summary import SweepTally


class Budget:
    """The device-seconds of a run, those of earlier sweeps included.

    Parameters
    ----------
    limit_gpu_s
        No trial starts once the run has used this much; None: no limit.
    """

    def __init__(self, limit_gpu_s: float | None) -> None:
        self._limit_gpu_s = limit_gpu_s
        self._earlier_gpu_s = 0.0
        self._hour_word = ""

    def count_earlier(self, store: RunStore) -> None:
        """Count what is recorded of earlier sweeps."""
        rows = store.rows()
        self._earlier_gpu_s = sum(row.get("allocated_gpu_s") or 0.0 for row in rows)
        self._hour_word = words_of_run(store.fingerprint, rows).hour

    def used_gpu_s(self, tally: SweepTally) -> float:
        """Return the device-seconds that the run has used."""
        return self._earlier_gpu_s + tally.used_gpu_s

    def spent(self, tally: SweepTally) -> str | None:
        """Return a sentence that the budget is spent; None while it is not."""
        used_gpu_s = self.used_gpu_s(tally)
        if self._limit_gpu_s is None or used_gpu_s < self._limit_gpu_s:
            return None
        return (
            f"the budget of {self._limit_gpu_s / 3600:g} {self._hour_word} is spent "
            f"({used_gpu_s / 3600:.3g} used)"
        )

"""A run that is open: its store, its lease and its rows, recovered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalelab.plan.source import Observation, found_no_place
from scalelab.records.control.lease import Lease
from scalelab.records.store import RunStore


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRun:
    """A run that one driver holds, and what earlier drivers measured in it."""

    store: RunStore
    lease: Lease
    workload: str | None  # that the latest row names; None: nothing has ended yet
    rows: tuple[Observation, ...]  # of all attempts
    retry_failed: bool  # a trial that failed gets one more attempt
    finished: tuple[Observation, ...]  # a row per trial that need not run again
    # Trials that did not fit the nodes of their sweep, by trial id: they may fit these.
    refused: Mapping[str, Observation]

    @property
    def used_gpu_s(self) -> float:
        """Device-seconds of all attempts."""
        return sum(row.get("allocated_gpu_s") or 0.0 for row in self.rows)

    @classmethod
    def recover(
        cls, store: RunStore, lease: Lease, *, retry_failed: bool = False
    ) -> OpenRun:
        """Reconcile what an earlier driver left, and read what it measured."""
        rows = store.recover()
        finished = store.finished(rows, retry_failed=retry_failed)
        refused = {row["trial_id"]: row for row in finished if found_no_place(row)}

        return cls(
            store=store,
            lease=lease,
            workload=rows[-1]["workload"] if rows else None,
            rows=tuple(rows),
            retry_failed=retry_failed,
            finished=tuple(row for row in finished if row["trial_id"] not in refused),
            refused=refused,
        )

"""Whether a trial gets a further attempt."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scalelab.inputs.outcome import Outcome

if TYPE_CHECKING:
    from scalelab.records.store import RunStore
    from scalelab.scheduling.trial_queue import Request


class Retries:
    """Counts the further attempts of each trial and says whether one more is allowed.

    Parameters
    ----------
    max_retries
        Further attempts of a trial whose node was lost, preempted or cancelled. Those
        that left a checkpoint do not count: they got somewhere.
    """

    def __init__(
        self, store: RunStore, *, max_retries: int, retry_failed: bool
    ) -> None:
        self._store = store
        self._max_retries = max_retries
        self._retry_failed = retry_failed
        self._counts: Counter[tuple[int, bool]] = Counter()

    def allow(
        self, request: Request, outcome: Outcome, *, got_on: bool, is_stopped: bool
    ) -> bool:
        """Tell whether a trial may run again after an attempt that ended so."""
        allowed = self._max_retries if outcome.is_retried else 0
        if outcome is Outcome.FAILED and not is_stopped:
            failed = self._store.outcomes(request.trial.trial_id)[outcome]
            allowed = int(self._retry_failed and failed == 1)
        key = request.number, outcome.is_retried
        self._counts[key] += not got_on
        return self._counts[key] <= allowed

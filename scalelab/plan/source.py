"""Where trials come from: the contract between a plan or a search and the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from scalelab.experiment.trial import Trial

Observation = Mapping[str, Any]
"""One row of the observations frame (``records.observations``), as a mapping."""


class TrialSource(Protocol):
    """Proposes trials and learns from their observations.

    ``ask`` returns the next trial to run, or None when there is nothing to run *now*.
    The driver ends the sweep when ``ask`` returns None and no trial is in flight; it
    asks again after every ``tell``. A trial is told exactly once, with the row of the
    attempt that counts; on resumption the finished rows of earlier runs are told first.
    """

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        ...

    def tell(self, observation: Observation) -> None:
        """Learn the outcome of a trial."""
        ...

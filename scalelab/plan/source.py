"""Trial sources: the interface between a plan or a search and the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.inputs.outcome import Outcome

if TYPE_CHECKING:
    from scalelab.experiment.trial import Trial
    from scalelab.plan.budget import Account
    from scalelab.plan.expand import Plan
    from scalelab.plan.inquiry import Inquiry

Observation = Mapping[str, Any]
"""One row of the observations frame (``records.observations``), as a mapping."""


def found_no_place(row: Observation) -> bool:
    """Tell whether a trial did not fit the nodes of its sweep: it may fit others."""
    return row["outcome"] == Outcome.REFUSED and not row["device_ids"]


class Decision(StrEnum):
    """The decision of a source about a running trial."""

    KEEP = "keep"
    END = "end"


class TrialSource(ABC):
    """Proposes trials and learns from their observations.

    The driver asks for the next trial until there is none to run *now*, and again after
    every ``tell`` and ``tell_progress``. The sweep ends when ``ask`` returns None and
    no trial is in flight. A trial is told exactly once, with the row of the attempt
    that counts; when a sweep is resumed, the rows that earlier sweeps finished are told
    first, and trials that are proposed although they have ended do not run again. All
    calls come from one thread.
    """

    wants_progress = False
    """The source wants to be asked about trials that run, see :meth:`tell_progress`."""

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return type(self).__name__

    def begin(self, directory: Path) -> None:  # noqa: B027
        """Learn the run's directory, where a sweep runs: files may be kept there.

        Called once by the one driver of the run, before the first ``ask``. Where it is
        not, as for a plan or a status, nothing may be written.
        """

    def allow(self, account: Account) -> None:  # noqa: B027
        """Learn what the sweep may spend, before the first ``ask`` of a sweep."""

    def describe(self) -> Iterable[str]:
        """Return what is being decided and how, in lines for whoever plans a sweep."""
        return ()

    @abstractmethod
    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""

    @abstractmethod
    def tell(self, observation: Observation) -> None:
        """Learn the outcome of a trial."""

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """Decide whether a trial that runs goes on.

        Called about once a second with what the trial has reported since: with every
        evaluation, and of training steps with the latest. A trial that is to end does
        so within about a second; its outcome is ``pruned``, and it does not run again.

        Parameters
        ----------
        trial
            The trial.
        step
            Optimiser steps done.
        metrics
            Numbers it reported by name: ``samples`` seen, ``t`` (training seconds),
            ``step_time_s`` and its own, such as ``loss`` or ``val_acc``.
        """
        return Decision.KEEP

    def expected_s(self, trial: Trial) -> float | None:
        """Return how many seconds a proposed trial is expected to take.

        None: the source does not know it.
        """
        return None

    @property
    def inquiry(self) -> Inquiry | None:
        """What is to be found out, and how far that is; None: it is not said."""
        return None

    @property
    def plan(self) -> Plan | None:
        """The trials, where they are known beforehand; None: not known."""
        return None

    @property
    def total(self) -> int | None:
        """Trials in all, those that have ended included; None: not known."""
        return None

    @property
    def remaining(self) -> int | None:
        """Trials that have not ended; None: not known."""
        return None

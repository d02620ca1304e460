"""The summary of a sweep: what was done, what failed and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTrial:
    """A trial that ended without a measurement and will not run again by itself."""

    trial: Trial
    outcome: Outcome
    reason: str
    log: str | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A trial that has not ended; the same command again would run it."""

    trial: Trial
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSummary:
    """The counts of a sweep: trials that ended, failed or are missing.

    Parameters
    ----------
    stopped
        Why the sweep ended before its source did; None if it did not.
    """

    outcomes: Mapping[Outcome, int]
    num_resumed: int
    failures: tuple[FailedTrial, ...]
    unfinished: tuple[Unfinished, ...]
    used_gpu_s: float
    stopped: str | None
    unsound: tuple[Observation, ...] = ()

    @property
    def num_finished(self) -> int:
        """Trials that ended, however they did."""
        return sum(self.outcomes.values())

    @property
    def num_failed(self) -> int:
        """Those of them that ended without a measurement, earlier sweeps included."""
        return _num_failed(self.outcomes)

    @property
    def is_complete(self) -> bool:
        """Every trial the source wanted has ended."""
        return not self.unfinished and self.stopped is None


@dataclass(slots=True)
class SweepTally:
    """Counts what ends while the sweep runs."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    num_resumed: int = 0
    failures: list[FailedTrial] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    used_gpu_s: float = 0.0

    @property
    def num_done(self) -> int:
        """Trials that need not run again."""
        return self.outcomes.total()

    @property
    def num_failed(self) -> int:
        """Those of them that ended without a measurement."""
        return _num_failed(self.outcomes)

    def count_earlier(self, observation: Observation) -> None:
        """Count a trial that an earlier sweep finished."""
        self.outcomes[Outcome(observation["outcome"])] += 1
        self.num_resumed += 1

    def count(self, trial: Trial, observation: Observation, log: str | None) -> None:
        """Count a trial that ended for good."""
        outcome = Outcome(observation["outcome"])
        self.outcomes[outcome] += 1
        if not outcome.is_measurement:
            reason = observation.get("reason") or ""
            self.failures.append(
                FailedTrial(trial=trial, outcome=outcome, reason=reason, log=log)
            )

    def summary(self, stopped: str | None) -> SweepSummary:
        """Return what was counted."""
        return SweepSummary(
            outcomes=dict(self.outcomes),
            num_resumed=self.num_resumed,
            failures=tuple(self.failures),
            unfinished=tuple(self.unfinished),
            used_gpu_s=self.used_gpu_s,
            stopped=stopped,
        )


def _num_failed(outcomes: Mapping[Outcome, int]) -> int:
    return sum(
        count for outcome, count in outcomes.items() if not outcome.is_measurement
    )

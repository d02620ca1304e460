"""The summary of a sweep: what was done, what failed and what is missing."""

from collections import Counter
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


@dataclass(kw_only=True, slots=True)
class SweepSummary:
    """The counts of a sweep, and of the trials that earlier sweeps of its run finished.

    ``stopped`` is why the sweep ended before its source did; None: it did not.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    num_resumed: int = 0
    failures: list[FailedTrial] = field(default_factory=list)
    unfinished: list[Trial] = field(default_factory=list)  # they would run again
    used_gpu_s: float = 0.0
    stopped: str | None = None
    unsound: tuple[Observation, ...] = ()  # first trials that failed their check

    @property
    def num_finished(self) -> int:
        """Trials that ended, however they did, and need not run again."""
        return self.outcomes.total()

    @property
    def num_failed(self) -> int:
        """Trials that ended without a measurement."""
        return sum(
            count
            for outcome, count in self.outcomes.items()
            if not outcome.is_measurement
        )

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

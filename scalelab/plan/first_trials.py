"""First trials: the smallest of each program runs alone, and is checked.

A sweep of a program that cannot be measured, or is read wrongly, would only find that
out after paying for its widest trial.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scalelab.experiment.trial import PROGRAM, Trial, TrialKind
from scalelab.plan.first_check import Sign, findings, is_sound
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.plan.tracked import TrackedSource

_Group = tuple[bool, str | None]
"""Several ranks or one, and the program."""


def _group_of(trial: Trial) -> _Group:
    return trial.world_size > 1, trial.program


def _smallest(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial that tells soonest and cheapest whether a program works.

    A throughput trial, since others run until a target is reached; of those the one on
    the fewest devices and nodes, with the smallest batch; of repeats the canary that is
    due first, then the first.
    """
    return min(
        trials,
        key=lambda trial: (
            trial.kind is not TrialKind.THROUGHPUT,
            trial.world_size,
            trial.allocation.num_nodes,
            trial.global_batch_size,
            -1 if trial.canary_after == 0 else trial.repeat,
        ),
        default=None,
    )


def first_trials(
    trials: Collection[Trial], programs: Iterable[str | None]
) -> list[Trial]:
    """Return the smallest trial of each program, then the smallest of several ranks."""
    groups = [(several, name) for several in (False, True) for name in programs]
    found = (_smallest(t for t in trials if _group_of(t) == group) for group in groups)
    return [trial for trial in found if trial is not None]


class FirstTrials(TrialSource):
    """Holds a source's trials back until the first of each program has ended well.

    For each program that is the smallest trial, and then the smallest of several ranks.
    A trial that runs until a target is reached holds the others back until its first
    step only. What an earlier sweep has measured well is not checked again. Where a
    first trial is unsound no further trial of its program is proposed.

    Parameters
    ----------
    source
        Proposes the trials. Where it does not know them beforehand, or looks for a
        local batch, its own first trial is the first one.
    programs
        Names of the programs; None alone: the experiment has only one.

    Attributes
    ----------
    failures
        The rows of unsound first trials, by program.
    """

    def __init__(
        self, source: TrackedSource, programs: Iterable[str | None] = (None,)
    ) -> None:
        self._source = source
        self._programs = frozenset(programs)
        self._unchecked = {
            (several, name) for name in self._programs for several in (False, True)
        }
        self._first: dict[str, Trial] = {}
        self._held: str | None = None
        self.wants_progress = source.wants_progress
        self.failures: dict[str | None, Observation] = {}

    @property
    def name(self) -> str:
        """Name of the source in the experiment."""
        return self._source.name

    def ask(self) -> Trial | None:
        """Return the next first trial, or the source's next where all were checked."""
        if self._held is not None or self.has_stopped:
            return None
        if first := self._next_first():
            return self._begin(first)
        while (trial := self._source.ask()) is not None:
            if trial.trial_id in self._first or trial.program in self.failures:
                continue
            is_unchecked = _group_of(trial) in self._unchecked
            return self._begin(trial) if is_unchecked else trial
        return None

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended; check it if it was a first one."""
        self._source.tell(observation)
        trial = self._first.get(observation["trial_id"])
        if trial is None:
            if self._unchecked and is_sound(observation):
                program = observation.get(f"options.{PROGRAM}")
                self._pass((observation["world_size"] > 1, program))
            return
        self._release(trial)
        found = findings(observation)
        if any(finding.sign is Sign.LOST for finding in found):
            self._unchecked.add(_group_of(trial))
        elif any(finding.stops for finding in found):
            self.failures[trial.program] = observation
        else:
            self._pass(_group_of(trial))

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """Let other trials start beside a long one that steps; ask the source."""
        if trial.kind is not TrialKind.THROUGHPUT:
            self._release(trial)
        if self._source.wants_progress:
            return self._source.tell_progress(trial, step, metrics)
        return Decision.KEEP

    @property
    def has_stopped(self) -> bool:
        """No trial is proposed any more, since the first ones were unsound."""
        if not self.failures:
            return False
        return self.failures.keys() == self._programs or not self._knows_trials

    def includes(self, trial_id: str) -> bool:
        """Tell whether a trial is one of the first, which are checked."""
        return trial_id in self._first

    def withheld(self) -> list[Trial]:
        """Return the trials that were not proposed because a first one was unsound."""
        return [t for t in self._source.left or [] if t.program in self.failures]

    @property
    def _knows_trials(self) -> bool:
        plan = self._source.plan
        return plan is not None and not plan.assumes_local_batch

    def _next_first(self) -> Trial | None:
        if not self._unchecked or not self._knows_trials:
            return None
        left = [t for t in self._source.left or [] if t.trial_id not in self._first]
        for group in sorted(self._unchecked, key=str):
            ours = [trial for trial in left if _group_of(trial) == group]
            if group[1] not in self.failures and (found := _smallest(ours)):
                return found
            self._unchecked.discard(group)
        return None

    def _begin(self, trial: Trial) -> Trial:
        self._unchecked.discard(_group_of(trial))
        self._first[trial.trial_id] = trial
        self._held = trial.trial_id
        is_long = trial.kind is not TrialKind.THROUGHPUT
        self.wants_progress = is_long or self._source.wants_progress
        return trial

    def _release(self, trial: Trial) -> None:
        if self._held == trial.trial_id:
            self._held = None
            self.wants_progress = self._source.wants_progress

    def _pass(self, group: _Group) -> None:
        # Who works with several ranks does with one.
        self._unchecked -= {group, (False, group[1])}

"""The trial source of a search: Optuna chooses the values under ``tune``.

It stands on Optuna's ask and tell. What a trial is given is frozen into it here, by the
driver; its ranks never talk to the search.

Its result says what was best of what, and how the trials ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import SpecError
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.rates import RateSetting
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.experiment.tuning import RATE, Objective, TunedValues
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.plan.diverged import diverged_in_words, diverged_runs
from scalelab.plan.expand import plan
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.records.columns import OPTION_PREFIX
from scalelab.records.ledger import final_metrics
from scalelab.records.streams import Streams
from scalelab.site.profile import Site

if TYPE_CHECKING:
    from optuna.study import Study

    from scalelab.search.journal import Ending, Evaluations, KeptStudy, Settings


def settings_of(
    row: Observation, tune: Mapping[str, TunedValues]
) -> dict[str, Scalar] | None:
    """Return the values that a trial had of what is tuned; None: it is none of it."""
    settings = {}
    for name, values in tune.items():
        value = row.get(RATE if name == RATE else OPTION_PREFIX + name)
        if value is None or not values.holds(value):
            return None
        settings[name] = value
    return settings


def results_of(row: Observation, objectives: Sequence[Objective]) -> list[float] | None:
    """Return what a completed trial came to, by objective; None: it tells not all.

    Time is that to the job's target, where the trial had one, else that of all its
    training steps; of a program that does not tell it apart, that on its devices.
    """
    if row["outcome"] != Outcome.COMPLETED:
        return None
    metrics = final_metrics(row)
    values = [
        _training_s(row) if objective.is_time else metrics.get(objective.metric)
        for objective in objectives
    ]
    if all(value is not None and math.isfinite(value) for value in values):
        return values  # type: ignore[return-value]

    return None


def _training_s(row: Observation) -> float | None:
    if row.get("time_to_target_s") is not None:
        return float(row["time_to_target_s"])
    samples, per_s = row.get("num_samples"), row.get("throughput_samples_per_s")
    if samples and per_s:
        return float(samples / per_s)
    held = row.get("allocated_gpu_s")
    return None if held is None else float(held / row["world_size"])


@dataclass(frozen=True, slots=True)
class TunedTrial:
    """A completed trial of a search: its settings, and a value of each objective."""

    trial_id: str
    settings: Mapping[str, Scalar]
    results: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The result of a search so far.

    ``best`` is the best completed trial, or the Pareto front of several objectives, the
    best by the first objective first.
    """

    objectives: Sequence[Objective]
    num_trials: int  # that the search is to have
    outcomes: Mapping[str, int]  # of those that have ended
    best: Sequence[TunedTrial]
    diverged: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, experiment: ExperimentKeys, rows: Iterable[Observation]) -> Self:
        """Read the result of an experiment's search from one row for each trial."""
        target = experiment.job.target if experiment.job else None
        objectives = experiment.objectives(target)

        outcomes, completed, tried = Counter[str](), [], list[Observation]()
        for row in rows:
            settings = settings_of(row, experiment.tune)
            if settings is None:
                continue
            tried.append(row)
            outcomes[str(row["outcome"])] += 1
            results = results_of(row, objectives)
            if results is not None:
                completed.append(TunedTrial(row["trial_id"], settings, results))

        signs = [
            1.0 if objective.is_smaller_better else -1.0 for objective in objectives
        ]

        def losses(trial: TunedTrial) -> list[float]:
            return [sign * x for sign, x in zip(signs, trial.results, strict=True)]

        front = [
            trial
            for trial in completed
            if not any(_beats(losses(other), losses(trial)) for other in completed)
        ]
        front.sort(key=losses)
        return cls(
            objectives=objectives,
            num_trials=experiment.num_trials,
            outcomes=outcomes,
            diverged=diverged_runs(tried),
            best=front if len(objectives) > 1 else front[:1],
        )

    @property
    def num_ended(self) -> int:
        """Trials that have ended."""
        return sum(self.outcomes.values())

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result in sentences: the best, how all ended, what it does not tell."""
        ends = ", ".join(
            f"{count:,} {outcome.replace('_', ' ')}"
            for outcome, count in self.outcomes.items()
        )
        left = self.num_trials - self.num_ended
        to_come = f"; {left:,} to come" if left > 0 else ""
        ended = f"{counted(self.num_ended, 'trial')} ended ({ends or 'none'}){to_come}"

        lines = [f"Search for {' and '.join(map(str, self.objectives))}: {ended}."]
        if self.diverged:
            lines.append(diverged_in_words(**self.diverged))
        if not self.best:
            return (*lines, "No trial has completed, so none is the best yet.")

        if len(self.objectives) == 1:
            lines.append(f"Best: {self._in_words(self.best[0])}.")
        else:
            front = counted(len(self.best), "trial")
            lines.append(f"Pareto front: {front}, none of which another beats in all.")
            lines += [f"  {self._in_words(entry)}" for entry in self.best]

        if self.outcomes.get(Outcome.COMPLETED, 0) > 1:
            lines.append(
                "Each setting was run once, with one seed, so the best of them is "
                "partly luck: repeat it with other seeds before you rely on it."
            )

        return tuple(lines)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the result as facts."""
        metrics = [objective.metric for objective in self.objectives]
        best = [
            {
                "kind": "best_of_search",
                "trial_id": entry.trial_id,
                "settings": dict(entry.settings),
                "results": dict(zip(metrics, entry.results, strict=True)),
            }
            for entry in self.best
        ]

        ended = {
            "kind": "search",
            "objectives": [
                {"metric": objective.metric, "mode": str(objective.mode)}
                for objective in self.objectives
            ],
            "num_trials": self.num_trials,
            "num_ended": self.num_ended,
            "outcomes": dict(self.outcomes),
            "diverged": dict(self.diverged),
        }
        return [ended, *best]

    def _in_words(self, trial: TunedTrial) -> str:
        results = ", ".join(
            f"{objective.metric} {value:.4g}{' s' if objective.is_time else ''}"
            for objective, value in zip(self.objectives, trial.results, strict=True)
        )
        settings = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in trial.settings.items()
        )
        return f"{results} with {settings} (trial {trial.trial_id})"


def _beats(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Tell whether losses are nowhere larger, and somewhere smaller."""
    pairs = list(zip(ours, theirs, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


# Trials at once where a site sets no limit on its nodes.
_AT_ONCE = 4
_INFEASIBLE = {
    Outcome.OUT_OF_MEMORY: "memory of a device",
    Outcome.HOST_OUT_OF_MEMORY: "memory of a host",
    Outcome.TARGET_NOT_REACHED: "target or finite loss",
}


class TunedTrials(TrialSource):
    """Proposes trials whose settings Optuna chooses, and ends those without prospects.

    As many are proposed at once as the site's devices hold. Settings that are proposed
    a second time do not run again: the first trial stands for them. A trial of one
    objective that evaluations report is pruned where its last value is worse than the
    median of the others at the same step.
    """

    def __init__(self, experiment: Experiment, site: Site) -> None:
        self._experiment = experiment
        target = experiment.job.target if experiment.job else None
        self.objectives = experiment.objectives(target)
        # A trial that stops at its target shows how long that takes, and nothing else.
        stops = all(objective.is_time for objective in self.objectives)
        (base,) = plan(experiment, site).trials
        kept_target = target if stops else None
        measurement = replace(base.measurement, target=kept_target)
        self._base = replace(base, measurement=measurement)
        self.wants_progress = len(self.objectives) == 1 and not stops
        devices = site.in_group(base.node_group).num_devices
        at_once = devices // base.world_size if devices else _AT_ONCE
        self._at_once = max(1, at_once)
        self._directory: Path | None = None
        self._study: KeptStudy | None = None
        self._rows: dict[str, Observation] = {}
        self._proposed: set[str] = set()

    def begin(self, directory: Path) -> None:
        """Keep the study in the run's directory from now on."""
        self._directory = directory

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        if not self.remaining:
            return None
        study = self._opened()
        for settings in study.begun():  # by an earlier driver
            if trial := self._proposal(settings):
                return trial

        # Where there are as many settings as trials, each is run, in order.
        is_listed = self._experiment.num_combinations == self.total
        while self._may_begin():
            settings = study.begin(self._untried() if is_listed else None)
            if trial := self._proposal(settings):
                return trial
            # These have run, or run now; what is left of few settings is taken in turn.
            is_listed = True
            self._stand_in(settings)

        return None

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended; one that no search proposed is none of its own."""
        settings = self._settings(observation)
        if settings is None:
            return
        self._refuse_unknown(observation)
        trial_id = observation["trial_id"]
        self._rows[trial_id] = observation
        self._proposed.discard(trial_id)
        if self._study is not None:
            self._study.end(trial_id, self._ending(observation, settings))

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """End a trial whose evaluations are worse than the median of the others."""
        value = metrics.get(self.objectives[0].metric)
        if value is None or not self.wants_progress:
            return Decision.KEEP
        is_hopeless = self._opened().report(trial.trial_id, step, value)
        return Decision.END if is_hopeless else Decision.KEEP

    @property
    def total(self) -> int:
        """Trials of the search."""
        return self._experiment.num_trials

    @property
    def remaining(self) -> int:
        """Trials that have not ended."""
        return max(0, self.total - len(self._rows))

    def describe(self) -> Iterator[str]:
        """Yield what is chosen, from what, by what, and how many trials at once."""
        sampler = self._experiment.sampler or "tpe"
        goal = " and ".join(map(str, self.objectives))
        at_once = counted(self._at_once, "trial")
        yield (
            f"Optuna ({sampler}) chooses the settings of {counted(self.total, 'trial')}"
            f", up to {at_once} at once, for {goal}:"
        )
        for name, values in self._experiment.tune.items():
            yield f"  {name}: {values}"

    def study(self, directory: Path) -> Study:
        """Return the study of a run, made anew in memory from what its trials left."""
        return self._kept(None, directory).study

    def _opened(self) -> KeptStudy:
        if self._study is None:
            self._study = self._kept(self._directory, self._directory)
        return self._study

    def _kept(self, writes_to: Path | None, reads: Path | None) -> KeptStudy:
        from scalelab.search.journal import KeptStudy

        return KeptStudy.open(
            writes_to,
            self._experiment,
            self.objectives,
            self._identify,
            {
                trial_id: self._ending(row, self._settings(row) or {})
                for trial_id, row in self._rows.items()
            },
            lambda: self._evaluations(reads),
            seed=self._base.seed,
        )

    def _may_begin(self) -> bool:
        num_running = len(self._proposed)
        is_left = len(self._rows) + num_running < self.total
        return is_left and num_running < self._at_once

    def _untried(self) -> Settings | None:
        """Return the first settings that no trial has; None: there is no end of them.

        Some are left, since there are no more trials than settings.
        """
        tune = self._experiment.tune
        if self._experiment.num_combinations is None:
            return None
        combinations = product(*(values.listed() for values in tune.values()))
        every = (dict(zip(tune, values, strict=True)) for values in combinations)
        taken = self._rows.keys() | self._proposed
        return next(
            candidate for candidate in every if self._identify(candidate) not in taken
        )

    def _proposal(self, settings: Settings) -> Trial | None:
        trial = self._trial(settings)
        if trial.trial_id in self._rows or trial.trial_id in self._proposed:
            return None
        self._proposed.add(trial.trial_id)
        return trial

    def _stand_in(self, settings: Settings) -> None:
        """Let the trial that has run with these settings stand for a second one."""
        trial_id = self._identify(settings)
        if row := self._rows.get(trial_id):
            self._opened().end(trial_id, self._ending(row, settings))

    def _trial(self, settings: Settings) -> Trial:
        options = {name: value for name, value in settings.items() if name != RATE}
        rate = self._base.learning_rate
        if RATE in settings:
            plain = RateSetting.plain(float(settings[RATE]))
            rate = plain.at(self._base.global_batch_size, None)
        return replace(
            self._base, learning_rate=rate, options={**self._base.options, **options}
        )

    def _identify(self, settings: Settings) -> str:
        return self._trial(settings).trial_id

    def _settings(self, row: Observation) -> Settings | None:
        settings = settings_of(row, self._experiment.tune)
        if settings is None or self._identify(settings) != row["trial_id"]:
            return None
        return settings

    def _ending(self, row: Observation, settings: Settings) -> Ending:
        from optuna.trial import TrialState

        from scalelab.search.journal import Ending

        outcome, state = Outcome(row["outcome"]), TrialState.FAIL

        values = results_of(row, self.objectives)
        if values is not None:
            state = TrialState.COMPLETE
        elif row.get("diverged") or outcome in (Outcome.PRUNED, *_INFEASIBLE):
            state = TrialState.PRUNED

        return Ending(
            settings=settings,
            state=state,
            values=values,
            infeasible=_INFEASIBLE.get(outcome, ""),
        )

    def _evaluations(self, directory: Path | None) -> Evaluations:
        """Return what trials have reported of the one objective, by trial and step."""
        metric, found = self.objectives[0].metric, dict[str, dict[int, float]]()
        if directory is None or not self.wants_progress or not self._rows:
            return found

        streams = Streams(directory).all(skips_unreadable=True)
        if metric in streams.columns:
            reported = streams.dropna(subset=[metric, "step"])
            rows = zip(
                reported["trial_id"], reported["step"], reported[metric], strict=True
            )
            for trial_id, step, value in rows:
                found.setdefault(str(trial_id), {})[int(step)] = float(value)

        return found

    def _refuse_unknown(self, row: Observation) -> None:
        metrics = final_metrics(row)
        wanted = [
            objective.metric for objective in self.objectives if not objective.is_time
        ]

        missing = [name for name in wanted if name not in metrics]
        if row["outcome"] == Outcome.COMPLETED and metrics and missing:
            raise SpecError(
                f"objective={missing[0]} is no metric that trials report: "
                f"{', '.join(sorted(metrics))}. Name one of these; what has ended is "
                "recorded and does not run again.",
                code="unknown_metric",
            )

"""The result of a search: what was best of what, and how the trials ended."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.tuning import RATE, Objective, TunedValues
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.plan.diverged import diverged_in_words, diverged_runs
from scalelab.plan.source import Observation
from scalelab.records.columns import OPTION_PREFIX
from scalelab.records.ledger import final_metrics


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

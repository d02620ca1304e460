"""The trial source of ``rule: tuned``: the best learning rate of each global batch."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import LearningRate, Trial, TrialKind
from scalelab.laws.convergence.rows import run_cost
from scalelab.plan.expand import plan
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import Observation, TrialSource
from scalelab.search.rate_search import (
    FARTHEST,
    best_place,
    first_rate,
    rate_at,
    wanted_runs,
)
from scalelab.site.profile import Site


class TunedRates(TrialSource):
    """Searches the rate of each batch, beside the other trials that are planned.

    Batches are searched one after the other, from the one that ``base`` was tuned at:
    where a search begins follows from those before. What it wants next depends on
    nothing but what its trials came to, so that a sweep that is resumed goes on alike.
    """

    def __init__(self, experiment: Experiment, site: Site) -> None:
        self._seeds = experiment.seed
        kinds = tuple(k for k in experiment.measure.kind if k != TrialKind.CONVERGENCE)
        measure = experiment.measure.model_copy(update={"kind": kinds})
        others = experiment.model_copy(update={"measure": measure})
        self._planned = PlannedTrials(others, site)
        self._told: dict[str, Observation] = {}
        self._proposed: set[str] = set()
        # By all settings but batch and rate, one trial of each batch
        self._batches: Mapping[Any, list[Trial]] = defaultdict(list)

        for trial in sorted(plan(experiment, site).trials, key=_far):
            if trial.kind is TrialKind.CONVERGENCE and trial.seed == self._seeds[0]:
                self._batches[_settings(trial)].append(trial)

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        for trial in self._wanted():
            if trial.trial_id not in self._proposed:
                self._proposed.add(trial.trial_id)
                return trial
        return self._planned.ask()

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended."""
        self._told[observation["trial_id"]] = observation
        self._planned.tell(observation)

    @property
    def remaining(self) -> int | None:
        """Trials that have not ended; None, not known, while a rate is searched."""
        return None if any(self._wanted()) else self._planned.remaining

    def describe(self) -> Iterator[str]:
        """Yield which rates are searched, and from where."""
        batches = {
            t.global_batch_size for tried in self._batches.values() for t in tried
        }
        yield (
            "The best learning rate is searched for global batch "
            f"{', '.join(map(str, sorted(batches)))}, each from what the best rule "
            "says by the batch before, with every seed at the best; how many trials "
            "that takes is not known."
        )

    def _wanted(self) -> Iterator[Trial]:
        for trials in self._batches.values():
            known = {_at_batch(trials[0]): _rate(trials[0]).base}
            found: dict[int, float] = {}
            for trial in trials:
                batch = trial.global_batch_size
                runs, best = self._pursue(trial, first_rate(found or known, batch))
                yield from runs
                if runs:
                    break
                if best is not None:
                    found[batch] = best

    def _pursue(self, trial: Trial, first: float) -> tuple[list[Trial], float | None]:
        """Return the runs that a batch lacks, or its best rate; None: all failed."""
        costs: dict[int, list[float]] = {}
        while wanted := wanted_runs(costs, len(self._seeds)):
            runs = [
                _at(trial, rate_at(first, place), self._seeds[number])
                for place, number in wanted
            ]
            lacking = [run for run in runs if run.trial_id not in self._told]
            if lacking:
                return lacking, None

            for (place, _), run in zip(wanted, runs, strict=True):
                cost = run_cost(self._told[run.trial_id])
                costs.setdefault(place, []).append(cost)

            if all(map(math.isinf, chain(*costs.values()))):
                diverged = all(self._told[run.trial_id].get("diverged") for run in runs)
                if not diverged or min(costs) <= -FARTHEST:
                    return [], None

        return [], rate_at(first, best_place(costs))


def _rate(trial: Trial) -> LearningRate:
    assert trial.learning_rate is not None
    return trial.learning_rate


def _at_batch(trial: Trial) -> int:
    return _rate(trial).at_batch or trial.global_batch_size


def _far(trial: Trial) -> float:
    return abs(math.log(trial.global_batch_size / _at_batch(trial)))


def _at(trial: Trial, rate: float, seed: int) -> Trial:
    found = replace(_rate(trial), base=rate, value=rate)
    return replace(trial, learning_rate=found, seed=seed)


def _settings(trial: Trial) -> tuple[Any, ...]:
    options = tuple(sorted(trial.options.items()))
    shared = (trial.precision, trial.parallelism, trial.program, trial.node_group)
    return (*shared, options, _rate(trial).warmup)

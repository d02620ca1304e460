"""The trial source of ``rule: tuned``: the best learning rate of each global batch.

The search for the rate of one batch narrows a bracket. Rates lie on a grid whose points
differ by the factor ``STEP``; a rate is called by its place on it, 0 where the search
begins. A run has a cost: what it needs to the target.

References
----------
Kiefer 1953, *Sequential minimax search for a maximum*: the golden section, here of the
logarithm of the rate. It takes the cost to have one minimum.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any

from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import LearningRate, Trial, TrialKind
from scalelab.laws.convergence.rows import ALIKE, run_cost
from scalelab.plan.expand import plan
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import Observation, TrialSource
from scalelab.site.profile import Site

STEP = math.sqrt(2.0)
_WIDTH = 2  # places from the middle of a bracket to its ends: a factor of 2
FARTHEST = 16  # places from the beginning: a factor of 256
_GOLDEN = 0.382

Costs = Mapping[int, Sequence[float]]
"""The costs of runs by place, one for each seed in order."""
Rule = LearningRateRule


def best_place(costs: Costs) -> int:
    """Return the place whose runs cost least, by their median."""
    return min(costs, key=lambda place: (median(costs[place]), abs(place)))


def wanted_runs(costs: Costs, num_seeds: int) -> list[tuple[int, int]]:
    """Return which runs, each a place and a seed's number, are to come next.

    They are none where the rate is found: its neighbours cost more, or as much as far
    as all seeds can tell, and it was run with every seed.
    """
    if first := _first_places(costs):
        return [(place, 0) for place in first]

    best = best_place(costs)
    for side in (-1, 1):
        outer = best + side * (2 * _WIDTH + max(_gaps(costs, best, side), default=0))
        if _is_open(costs, best, side) and abs(outer) <= FARTHEST:
            return [(outer, 0)]

    gaps = {side: min(_gaps(costs, best, side), default=0) for side in (-1, 1)}
    ends = [best + side * gap for side, gap in gaps.items() if gap]
    rivals = [place for place in ends if _are_alike(costs, place, best)]
    alike = [best, *rivals]

    fewest = min(len(costs[place]) for place in alike)
    if rivals and fewest < num_seeds:
        return [(place, fewest) for place in alike if len(costs[place]) == fewest]

    side = max(gaps, key=gaps.__getitem__)
    if gaps[side] > 1 and len(rivals) < 2:
        return [(best + side * max(1, round(_GOLDEN * gaps[side])), 0)]

    return [(best, seed) for seed in range(len(costs[best]), num_seeds)]


def _first_places(costs: Costs) -> list[int]:
    """Return the places to begin with; a lower one while all runs cost infinitely."""
    first = [place for place in (0, -_WIDTH, _WIDTH) if place not in costs]
    if not first and math.isinf(median(costs[best_place(costs)])):
        first = [min(costs) - 2 * _WIDTH]
    return first


def _gaps(costs: Costs, best: int, side: int) -> list[int]:
    """Return how far the places on one side of the best are from it."""
    return [side * (place - best) for place in costs if side * (place - best) > 0]


def _is_open(costs: Costs, best: int, side: int) -> bool:
    """Tell whether no place on one side of the best costs more.

    Rates that all diverge, say, cost alike too, and are no minimum.
    """
    gaps = _gaps(costs, best, side)
    return all(_are_alike(costs, best + side * gap, best) for gap in gaps)


def _are_alike(costs: Costs, place: int, other: int) -> bool:
    ratio = median(costs[place]) / median(costs[other])
    return abs(math.log(ratio)) <= ALIKE


def first_rate(solved: Mapping[int, float], batch: int) -> float:
    """Return where the search at a batch begins, from the rates of solved batches.

    It is the rate of the nearest of them, scaled by the rule that tells the others'
    best from each other; by the square root where there is only one.
    """

    def error(rule: Rule) -> float:
        return sum(
            abs(math.log(_scaled(solved, one, other, rule) / solved[other]))
            for one in solved
            for other in solved
        )

    rules = (Rule.SQRT, Rule.LINEAR, Rule.NONE)
    nearest = min(solved, key=lambda solved_batch: abs(math.log(solved_batch / batch)))
    return _scaled(solved, nearest, batch, min(rules, key=error))


def _scaled(solved: Mapping[int, float], one: int, batch: int, rule: Rule) -> float:
    return scaled_rate(solved[one], rule=rule, at_batch=one, global_batch_size=batch)


def rate_at(first: float, place: int) -> float:
    """Return the rate of a place, with the digits that a person would give it."""
    return float(f"{first * STEP**place:.4g}")


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

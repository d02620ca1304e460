"""The search for the learning rate of one batch: a bracket, narrowed.

Rates lie on a grid whose points differ by the factor ``STEP``; a rate is called by its
place on it, 0 where the search begins. A run has a cost: what it needs to the target.

References
----------
Kiefer 1953, *Sequential minimax search for a maximum*: the golden section, here of the
logarithm of the rate. It takes the cost to have one minimum.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.laws.convergence.rows import ALIKE

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

"""The canary: a cheap control trial, repeated to notice that the machine changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scalelab.experiment.trial import FIRST_CANARY, Trial, TrialKind


def with_canaries(trials: Sequence[Trial], every: int) -> list[Trial]:
    """Insert the canary at the start, after every ``every`` trials, and at the end.

    The canary is the first throughput trial of the cheapest configuration: the one with
    the fewest samples per step, since device time grows with them; among equals the
    fewest devices, then the fewest nodes, then the first in the plan. Its repeat index
    says when it is due, so that a plan that is resumed, or extended, asks for the same
    canaries and for no more than it lacks.
    """
    candidates = [trial for trial in trials if trial.kind is TrialKind.THROUGHPUT]
    planned = list(trials)
    if not every or len(trials) < every or not candidates:
        return planned
    cheapest = min(candidates, key=_cost)
    moments = [*range(0, len(trials) - every + 1, every), len(trials)]
    for moment in reversed(moments):
        planned.insert(moment, replace(cheapest, repeat=FIRST_CANARY + moment))
    return planned


def _cost(trial: Trial) -> tuple[int, int, int]:
    return trial.global_batch_size, trial.world_size, trial.allocation.num_nodes

"""Estimated durations of trials, learnt from trials that have ended."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scalelab.experiment.trial import PROGRAM, Trial
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation

UNKNOWN_S = 30.0
"""Seconds that every trial is taken to last until the first one has ended."""

_Work = tuple[str, int, int, int, int, str, str, str | None, str | None]
"""Kind, devices, nodes, local batch, accumulation; then settings: precision,
parallelism, node group, program."""


class Durations:
    """Estimates how many seconds a trial holds its devices.

    Trials that differ in nothing but seed and repeat take equally long.
    """

    def __init__(self, rows: Iterable[Observation] = ()) -> None:
        self._seconds: dict[_Work, float] = {}
        for row in rows:
            self.learn(row)

    def learn(self, row: Observation) -> None:
        """Remember how long a trial held its devices, if it measured something.

        A trial that its source ended early says nothing about those that run on.
        """
        held = row.get("allocated_gpu_s")
        outcome = Outcome(row["outcome"])
        if outcome is Outcome.PRUNED or not outcome.is_measurement:
            return
        if held is not None:
            self._seconds[_work_of(row)] = held / row["world_size"]

    def estimate(self, trial: Trial) -> float | None:
        """Return the seconds of an equal trial, else of the most similar of its kind.

        None where no trial of the kind has ended.
        """
        work = _work(trial)
        if work in self._seconds:
            return self._seconds[work]
        alike = [known for known in self._seconds if known[0] == work[0]]
        if not alike:
            return None
        return self._seconds[min(alike, key=lambda known: _distance(known, work))]

    def gpu_hours(self, trials: Iterable[Trial]) -> float | None:
        """Return the device-hours of trials; None where a kind is unknown."""
        total_s = 0.0
        for trial in trials:
            seconds = self.estimate(trial)
            if seconds is None:
                return None
            total_s += seconds * trial.world_size
        return total_s / 3600


def _work(trial: Trial) -> _Work:
    return (
        trial.kind.value,
        trial.world_size,
        trial.allocation.num_nodes,
        trial.local_batch_size,
        trial.gradient_accumulation_steps,
        trial.precision,
        trial.parallelism,
        trial.node_group,
        trial.program,
    )


def _work_of(row: Observation) -> _Work:
    return (
        row["kind"],
        row["world_size"],
        row["num_nodes"],
        row["local_batch_size"],
        row["gradient_accumulation_steps"],
        row["precision"],
        row["parallelism"],
        row.get("node_group"),
        row.get(f"options.{PROGRAM}"),
    )


def _distance(one: _Work, other: _Work) -> tuple[int, float]:
    """Measure how two trials differ: by settings first, then by doublings in size."""
    settings = sum(a != b for a, b in zip(one[5:], other[5:], strict=True))
    sizes = zip(one[1:5], other[1:5], strict=True)
    return settings, sum(abs(math.log2(a / b)) for a, b in sizes)

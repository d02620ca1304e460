"""Whether the program's own rate agrees with the steps that were read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scalelab.experiment.program import SAMPLES_OF_EPOCH
from scalelab.experiment.trial import Trial
from scalelab.launch.command.lines import SAMPLES, Report
from scalelab.launch.command.witness.own_rates import OwnRate, RateUnit
from scalelab.plan.first_check import DOUBTED_BEYOND

_TOLERANCE = math.log(DOUBTED_BEYOND)
_SAMPLES = (SAMPLES, SAMPLES_OF_EPOCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    rate: OwnRate
    num_seen: int
    is_of_step: bool


class RateWitness:
    """Keeps the program's own rates, and compares them with measured step times.

    Parameters
    ----------
    tokens_per_sample
        Tokens of a sample; None: not known, and rates of tokens tell nothing.
    """

    def __init__(self, trial: Trial, tokens_per_sample: int | None = None) -> None:
        self._trial = trial
        self._tokens_per_sample = tokens_per_sample
        self._readings: list[_Reading] = []

    def take(self, report: Report, num_seen: int) -> None:
        """Take in what a line says; ``num_seen`` steps were done by then."""
        # Whether the bar of such a line counts samples or batches is not known.
        is_of_samples = report.count is not None and report.count.name in _SAMPLES
        self._readings += [
            _Reading(rate=rate, num_seen=num_seen, is_of_step=report.step is not None)
            for rate in report.rates
            if not (is_of_samples and rate.unit is RateUnit.COUNTS)
        ]

    def step_time_s(
        self, step_times_s: Sequence[float], *, after_steps: int = 0
    ) -> float | None:
        """Return the seconds of an optimiser step by the program's own rate, a median.

        None where it prints none, or where a rate might be of one rank or of all, or of
        a pass or of a step, and that is a factor that is looked for.
        """
        rates = self._rates(after_steps)
        if not rates or not step_times_s:
            return None
        seconds = median(rate.seconds for rate in rates)
        passes = self._trial.gradient_accumulation_steps
        ranks = self._trial.data_parallel_size
        if rates[0].unit in (RateUnit.ITERATIONS, RateUnit.COUNTS):
            # Passes that are called steps agree with a rate of passes.
            candidates, is_doubtful = {seconds, seconds * passes}, True
        else:
            of_tokens = rates[0].unit is RateUnit.TOKENS
            tokens = self._tokens_per_sample if of_tokens else None
            of_all = seconds * (tokens or 1) * self._trial.global_batch_size
            one = of_all / ranks
            either = {True: {of_all}, False: {one}, None: {of_all, one}}
            candidates = either[rates[0].of_all_ranks]
            is_doubtful = ranks in _factors(self._trial, of_ranks=False)
        nearest = min(candidates, key=lambda each: _distance(each, step_times_s))
        is_near = _distance(nearest, step_times_s) <= _TOLERANCE
        return None if is_near and is_doubtful and len(candidates) > 1 else nearest

    def is_settling(self, after_steps: int) -> bool:
        """Tell whether the rate still rises, as a mean that holds the first steps does.

        Bars and meters smooth over some twenty steps, and a first step that compiles or
        starts what loads the data may take as long as hundreds.
        """
        seconds = [rate.seconds for rate in self._rates(after_steps)]
        half = len(seconds) // 2
        if not half:
            return False
        earlier, later = median(seconds[:half]), median(seconds[-half:])
        return math.log(earlier / later) > _TOLERANCE

    def contradicts(self, step_time_s: float, step_times_s: Sequence[float]) -> bool:
        """Tell whether a step time by the program's rate is a batch factor off.

        Then one of both counts something else than optimiser steps. Other differences
        may have their reason, such as a clock that leaves out what a step waits for.
        """
        if _distance(step_time_s, step_times_s) <= _TOLERANCE:
            return False
        return any(
            _distance(each, step_times_s) <= _TOLERANCE
            for factor in _factors(self._trial, of_ranks=True)
            for each in (step_time_s * factor, step_time_s / factor)
        )

    def _rates(self, after_steps: int) -> list[OwnRate]:
        """Return the rates of one unit: of lines of steps, if those have any."""
        late = [each for each in self._readings if each.num_seen > after_steps]
        of_steps = [each for each in late if each.is_of_step] or late
        for unit in RateUnit:
            rates = [each.rate for each in of_steps if each.rate.unit is unit]
            if rates and (unit is not RateUnit.TOKENS or self._tokens_per_sample):
                return rates
        return []


def _factors(trial: Trial, *, of_ranks: bool) -> set[int]:
    """Return by what a count of something else than steps is wrong."""
    local, passes = trial.local_batch_size, trial.gradient_accumulation_steps
    factors = {passes, local, local * passes}
    if of_ranks:
        ranks = trial.data_parallel_size
        factors |= {ranks, local * ranks, trial.global_batch_size}
    return factors - {1}


def _distance(step_time_s: float, step_times_s: Sequence[float]) -> float:
    """Return how far the nearest is, as the logarithm of the ratio."""
    return min(abs(math.log(step_time_s / each)) for each in step_times_s)

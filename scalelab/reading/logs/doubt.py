"""What a log says of its own steps, held against the steps that were read of it."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.plan.first_check import DOUBTED_BEYOND, RATE_DISAGREES
from scalelab.reading.logs.lines import Report
from scalelab.reading.logs.rates import OwnRate, RateUnit

_TOLERANCE = math.log(DOUBTED_BEYOND)
_OF_PASSES = (RateUnit.ITERATIONS, RateUnit.COUNTS)


class LogWitness:
    """Keeps the samples and the rates that a program prints beside its steps.

    Where the tokens of a sample are not known, rates of tokens tell nothing. Those of
    samples are held against ``samples_per_step``.
    """

    def __init__(self, trial: Trial, tokens_per_sample: int | None = None) -> None:
        self._trial = trial
        self.samples_per_step = float(trial.global_batch_size)
        self._tokens_per_sample = tokens_per_sample
        self._readings: list[tuple[OwnRate, int, bool]] = []
        self._samples: tuple[int, int] | None = None
        self._holds_samples = False

    def check(self, report: Report, step: int) -> None:
        """Refuse samples beside a step that contradict the batch arithmetic."""
        if report.samples is None:
            return
        before, self._samples = self._samples, (step, report.samples)
        if before is not None:
            rise = step - before[0], report.samples - before[1]
            of_step = 1, report.samples  # where they do not rise
            _check_samples(self._trial, *(rise if rise[1] > 0 else of_step))
            self._holds_samples = True

    def take(self, report: Report, num_seen: int) -> None:
        """Take in the rates of a line; ``num_seen`` steps were done by then."""
        is_of_step = report.step is not None
        # Whether the bar of a line that counts samples shows them is not known.
        self._readings += [
            (rate, num_seen, is_of_step)
            for rate in report.rates
            if not (report.of_samples and rate.unit is RateUnit.COUNTS)
        ]

    def doubt(
        self, step_times_s: Sequence[float], *, after_steps: int
    ) -> dict[str, Any]:
        """Return what the log says of measured step times, by column."""
        columns: dict[str, Any] = {}
        by_rate = self._step_time_s(step_times_s, after_steps)
        if by_rate is not None and not self._is_settling(after_steps):
            columns["reported_step_time_s"] = by_rate
            is_off = self._contradicts(by_rate, step_times_s)
            of_samples = (RateUnit.SAMPLES, RateUnit.TOKENS)
            # Samples that agree with the steps have shown what is counted.
            if is_off and not self._holds_samples:
                columns["validity"] = [RATE_DISAGREES]
            elif not is_off and self._rates(after_steps)[0].unit in of_samples:
                columns["samples_witness"] = "rate"

        if self._holds_samples:
            columns["samples_witness"] = "log"

        return columns

    def possible_step_times_s(self, *, after_steps: int) -> set[float]:
        """Return the seconds of an optimiser step that the program's own rate may mean.

        A rate may be of one rank or of all, of a pass or of a step. Empty where none is
        printed.
        """
        if not (rates := self._rates(after_steps)):
            return set()

        seconds = fmean(rate.seconds for rate in rates)
        if rates[0].unit in _OF_PASSES:
            # Passes that are called steps agree with a rate of passes.
            return {seconds, seconds * self._trial.gradient_accumulation_steps}

        is_of_tokens = rates[0].unit is RateUnit.TOKENS
        items = (self._tokens_per_sample or 1) if is_of_tokens else 1
        of_all = seconds * items * self.samples_per_step
        one = of_all / self._trial.data_parallel_size
        either = {True: {of_all}, False: {one}, None: {of_all, one}}
        return either[rates[0].of_all_ranks]

    def _step_time_s(
        self, step_times_s: Sequence[float], after_steps: int
    ) -> float | None:
        """Return the seconds of an optimiser step by the program's own rate, a mean.

        So is the step time that it is held against: the two are of the same steps.
        None where it prints none, or where a rate might be of one rank or of all, or of
        a pass or of a step, and that is a factor that is looked for.
        """
        candidates = self.possible_step_times_s(after_steps=after_steps)
        if not candidates or not step_times_s:
            return None

        ranks = self._trial.data_parallel_size
        is_of_passes = self._rates(after_steps)[0].unit in _OF_PASSES
        is_doubtful = is_of_passes or ranks in _factors(self._trial, of_ranks=False)
        nearest = min(candidates, key=lambda time_s: _distance(time_s, step_times_s))
        is_near = _distance(nearest, step_times_s) <= _TOLERANCE
        return None if is_near and is_doubtful and len(candidates) > 1 else nearest

    def _is_settling(self, after_steps: int) -> bool:
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

    def _contradicts(self, step_time_s: float, step_times_s: Sequence[float]) -> bool:
        """Tell whether a step time by the program's rate is a batch factor off.

        Then one of both counts something else than optimiser steps. Other differences
        may have their reason, such as a clock that leaves out what a step waits for.
        """
        if _distance(step_time_s, step_times_s) <= _TOLERANCE:
            return False
        return any(
            _distance(time_s, step_times_s) <= _TOLERANCE
            for factor in _factors(self._trial, of_ranks=True)
            for time_s in (step_time_s * factor, step_time_s / factor)
        )

    def _rates(self, after_steps: int) -> list[OwnRate]:
        """Return the rates of one unit: of lines of steps, if those have any."""
        late = [
            (rate, is_of_step)
            for rate, num_seen, is_of_step in self._readings
            if num_seen > after_steps
        ]
        of_steps = [rate for rate, is_of_step in late if is_of_step]

        printed = of_steps or [rate for rate, _ in late]
        for unit in RateUnit:
            rates = [rate for rate in printed if rate.unit is unit]
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
    return min(abs(math.log(step_time_s / other)) for other in step_times_s)


def _check_samples(trial: Trial, num_steps: int, samples: int) -> None:
    accumulation = trial.gradient_accumulation_steps
    expected = num_steps * trial.global_batch_size
    if samples == expected:
        return

    raise SpecError(
        f"the command reported {samples:,} samples in {num_steps:,} steps; "
        f"{num_steps:,} x global_batch_size={trial.global_batch_size:,} "
        f"(local_batch_size={trial.local_batch_size} x data_parallel_size="
        f"{trial.data_parallel_size} x gradient_accumulation_steps={accumulation}) is "
        f"{expected:,}. Likely it counts the samples of one rank, not of all "
        f"{trial.data_parallel_size}, or its steps ignore gradient accumulation "
        f"({accumulation} forward passes make one step). The last batch of an epoch "
        "must be full, too (drop_last=True).",
        code="other_samples",
    )

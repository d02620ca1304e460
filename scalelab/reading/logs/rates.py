"""The rate that a program prints itself, and whether it agrees with the steps read.

Only forms whose unit is told are read. Running means over a whole training are not:
they hold the warm-up.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from scalelab.experiment.trial import Trial
from scalelab.plan.first_check import DOUBTED_BEYOND

_TOLERANCE = math.log(DOUBTED_BEYOND)


class RateUnit(StrEnum):
    """What a program counts in its own rate.

    An iteration is what the program calls so: a forward pass or an optimiser step.
    A count is whatever the bar counts that shows the rate.
    """

    SAMPLES = "samples"
    TOKENS = "tokens"
    ITERATIONS = "iterations"
    COUNTS = "counts"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRate:
    """A rate that a program prints: the seconds for one unit.

    ``of_all_ranks`` says whether the rate is of all ranks, or of one; None: the line
    does not say.
    """

    unit: RateUnit
    seconds: float
    of_all_ranks: bool | None = None


_N = r"(?<![\w.,])(?P<n>\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_PER = r" ?(?:/|_?per[_ ]) ?"
_SECOND = r"(?:s|secs?|seconds?)\b"
_TIME = r"(?P<unit>us|ms|s|secs?|seconds?)"
_BEHIND_NAME = r"[\"')\]]*[ :=|]+"
_RANK = r"(?P<rank>(?:/|[_ ]per[_ ])(?:gpu|device|rank|worker|core|chip)\b)?"
# No name of a rate of another kind of pass, or of a whole training, ends like this.
_ALONE = r"(?<![\w.])(?<!val/)(?<!eval/)(?<!test/)"
_SAMPLE = r"(?:samples?|imgs?|images?|examples?|seqs?|sequences?|sentences?)"
_TOKEN = r"(?:tokens?|toks?)"
_ITERATION = r"(?:iterations?|iters?|its?|steps?|batch(?:es)?|updates?)"
_SCALES = {"us": 1e-6, "ms": 1e-3}
# A number of so few digits cannot tell a tenth.
_COARSEST = 0.05


def _forms() -> Iterator[tuple[RateUnit, re.Pattern[str]]]:
    """Yield expressions, the unambiguous first.

    The group ``n`` is seconds where the form has a unit of time, else a rate.
    """
    # timm and open_clip print seconds of a step and, behind them, samples of all ranks.
    all_ranks = rf"(?:Time|Batch \(t\)): *[\d.]+s?, +(?P<all>){_N}/s"
    yield RateUnit.SAMPLES, re.compile(all_ranks)
    yield RateUnit.SAMPLES, re.compile(rf"\bCurrSamplesPerSec=(?P<all>){_N}")
    for unit, thing in ((RateUnit.SAMPLES, _SAMPLE), (RateUnit.TOKENS, _TOKEN)):
        rate = rf"{thing}{_PER}{_SECOND}{_RANK}"
        yield unit, re.compile(rf"{_N} ?{rate}", re.IGNORECASE)
        yield unit, re.compile(rf"{_ALONE}{rate}{_BEHIND_NAME}{_N}", re.IGNORECASE)
    # [00:01<00:40,  1.33s/it of tqdm
    bar = r"<[\d:?]+, *"
    yield RateUnit.COUNTS, re.compile(rf"{bar}{_N}{_TIME}/{_ITERATION}\b")
    yield RateUnit.COUNTS, re.compile(rf"{bar}{_N}{_ITERATION}/s\b")
    for form in (
        rf"{_N} ?{_TIME}{_PER}{_ITERATION}\b",
        rf"{_N} ?{_ITERATION}{_PER}{_SECOND}",
        rf"{_ALONE}{_TIME}{_PER}{_ITERATION}\b{_BEHIND_NAME}{_N}",
        rf"{_ALONE}{_ITERATION}{_PER}{_SECOND}{_BEHIND_NAME}{_N}",
        rf"elapsed time per iteration \((?P<unit>ms)\): *{_N}",
        rf"\b(?:time|dt){_BEHIND_NAME}{_N} ?(?P<unit>ms)\b",
        rf"\b(?:step|iter|iteration|batch)[_ ]time{_BEHIND_NAME}{_N} ?{_TIME}\b",
        rf"\b(?:step|iter|iteration|batch)[_ ]time_(?P<unit>s|ms){_BEHIND_NAME}{_N}",
        # MetricLogger, mmengine, detectron2: seconds of a pass, then of its data
        rf"\btime: *{_N}(?P<unit>),? +(?:data|data_time|last_time)\b",
        # AverageMeter: the last value, then the mean
        rf"\b(?:batch[_ ]?)?time:? +{_N}(?P<unit>s?) \( *[\d.]+s?\)",
    ):
        yield RateUnit.ITERATIONS, re.compile(form, re.IGNORECASE)


_FORMS = tuple(_forms())


def own_rates(text: str) -> tuple[OwnRate, ...]:
    """Return the program's own rates in a line, at most one for each unit.

    >>> [rate.seconds == 1 / 11.5 for rate in own_rates("step 3 | 11.5 samples/s")]
    [True]
    >>> [rate.unit for rate in own_rates("3%|# | 1/32 [00:01<00:40, 1.33s/it, loss=1]")]
    [<RateUnit.COUNTS: 'counts'>]
    """
    found: dict[RateUnit, OwnRate] = {}
    for unit, form in _FORMS:
        # What a bar counts is called an iteration as well.
        units = {unit, RateUnit.COUNTS} if unit is RateUnit.ITERATIONS else {unit}
        if not found.keys() & units and (match := form.search(text)):
            rate = _rate(unit, match)
            found |= {unit: rate} if rate else {}
    return tuple(found.values())


def _rate(unit: RateUnit, match: re.Match[str]) -> OwnRate | None:
    groups = match.groupdict()
    digits, _, exponent = groups["n"].replace(",", "").lower().partition("e")
    value, places = float(digits), len(digits.partition(".")[2])
    if value <= 0 or 0.5 * 10**-places > _COARSEST * value:
        return None
    value *= math.pow(10, int(exponent or 0))
    time = groups.get("unit")
    return OwnRate(
        unit=unit,
        seconds=1 / value if time is None else value * _SCALES.get(time.lower(), 1.0),
        of_all_ranks=True if "all" in groups else False if groups.get("rank") else None,
    )


class RateWitness:
    """Keeps the program's own rates, and compares them with measured step times.

    Where the tokens of a sample are not known, rates of tokens tell nothing.
    """

    def __init__(self, trial: Trial, tokens_per_sample: int | None = None) -> None:
        self._trial = trial
        self._tokens_per_sample = tokens_per_sample
        self._readings: list[tuple[OwnRate, int, bool]] = []

    def take(
        self,
        rates: Iterable[OwnRate],
        num_seen: int,
        *,
        counts_samples: bool,
        is_of_step: bool,
    ) -> None:
        """Take in the rates of a line; ``num_seen`` steps were done by then.

        ``is_of_step`` says whether the line reports a step.
        """
        # Whether the bar of a line that counts samples shows them is not known.
        self._readings += [
            (rate, num_seen, is_of_step)
            for rate in rates
            if not (counts_samples and rate.unit is RateUnit.COUNTS)
        ]

    def step_time_s(
        self, step_times_s: Sequence[float], *, after_steps: int = 0
    ) -> float | None:
        """Return the seconds of an optimiser step by the program's own rate, a mean.

        So is the step time that it is held against: the two are of the same steps.
        None where it prints none, or where a rate might be of one rank or of all, or of
        a pass or of a step, and that is a factor that is looked for.
        """
        rates = self._rates(after_steps)
        if not rates or not step_times_s:
            return None
        seconds = fmean(rate.seconds for rate in rates)
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

    @property
    def is_of_samples(self) -> bool:
        """Whether the rate is one of samples or tokens: it confirms the batch."""
        return any(
            rate.unit in (RateUnit.SAMPLES, RateUnit.TOKENS) for rate in self._rates(0)
        )

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
        late = [
            (rate, of_step) for rate, at, of_step in self._readings if at > after_steps
        ]
        told = [rate for rate, of_step in late if of_step] or [rate for rate, _ in late]
        for unit in RateUnit:
            rates = [rate for rate in told if rate.unit is unit]
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

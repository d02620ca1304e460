"""The rate that a program prints itself.

Only forms whose unit is told are read. Running means over a whole training are not:
they hold the warm-up.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from scalelab.reading.vocabulary import DEVICES, SAMPLES, SECONDS, STEPS, TOKENS


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
# In a line of output a worker is a rank; in a table it may be a node.
_RANKS = "|".join((*DEVICES, "worker", "core"))
_RANK = rf"(?P<rank>(?:/|[_ ]per[_ ])(?:{_RANKS})\b)?"
# No name of a rate of another kind of pass, or of a whole training, ends like this.
_ALONE = r"(?<![\w.])(?<!val/)(?<!eval/)(?<!test/)"
_SAMPLE, _TOKEN, _ITERATION = (
    f"(?:{'|'.join(words)})" for words in (SAMPLES, TOKENS, STEPS)
)
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
        seconds=1 / value if time is None else value * SECONDS.get(time.lower(), 1.0),
        of_all_ranks=True if "all" in groups else False if groups.get("rank") else None,
    )

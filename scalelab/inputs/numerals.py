"""Numbers, durations, shares and counts in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, NamedTuple, NoReturn, Self

from scalelab.inputs.guessed import Guided, by_guess

_DURATIONS = (
    *((1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s")),
    *((7200.0, 60.0, "min"), (48 * 3600.0, 3600.0, "h")),
)
_DAY = 86400.0, "days"
_FEW_HOURS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval(Guided):
    """A value with the ends of its interval, all in the same unit.

    Times or divided by a positive number it is the interval in another unit.

    >>> hours = Interval(value=7200.0, lo=6300.0, hi=9000.0) / 3600
    >>> float(hours), f"{hours:.1f} h"
    (2.0, '2.0 [1.8-2.5] h')
    """

    _instead: ClassVar[Mapping[str, str]] = by_guess(
        {
            "interval.value": "median mean mid middle estimate seconds total_seconds",
            "interval.lo": "low lower minimum min start left",
            "interval.hi": "high upper maximum max end right",
        }
    )

    value: float
    lo: float
    hi: float

    def __float__(self) -> float:
        return self.value

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        value, lo, hi = (
            format(number, spec) for number in (self.value, self.lo, self.hi)
        )
        return f"{value} [{lo}-{hi}]"

    def __mul__(self, factor: float) -> Self:
        scaled = {name: factor * number for name, number in asdict(self).items()}
        return replace(self, **scaled)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Self:
        return self * (1 / divisor)

    def __lt__(self, other: object) -> NoReturn:
        raise TypeError(
            "An interval is neither less nor more than a number. Compare its value, lo "
            "or hi."
        )

    __le__ = __gt__ = __ge__ = __lt__


_HUNDRED = 99.95  # from where a number is written without decimals


def number(value: float) -> str:
    """Write a number with the digits that matter.

    >>> [number(value) for value in (4096, 10.34, 2.91, 0.0123)]
    ['4,096', '10.3', '2.9', '0.012']
    """
    if not math.isfinite(value):
        return "-"
    # from where one more digit is rounded to 100 and to 10
    if abs(value) >= _HUNDRED or math.isclose(value, round(value), rel_tol=1e-9):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def rounded_up(value: float) -> float:
    """Return the least number from here on that :func:`number` writes in full.

    >>> [rounded_up(value) for value in (97.21, 9.96, 2.91, 0.0123, 412.3)]
    [97.3, 10.0, 3.0, 0.013, 413.0]
    """
    magnitude = math.floor(math.log10(value)) if value > 0 else 0
    decimals = min(max(1 - magnitude, 0 if value > _HUNDRED else 1), 15)
    step = 10.0**-decimals
    return round(math.ceil(value / step) * step, decimals)


def estimate(interval: Interval) -> str:
    """Write the value of an interval with as many digits as its width bears.

    Two to four are written; four where the ends are not known.

    >>> [estimate(Interval(value=24148.0, lo=lo, hi=hi))
    ...  for lo, hi in ((14401.0, 40493.0), (23500.0, 24800.0), (24100.0, 24200.0))]
    ['24,000', '24,100', '24,150']
    """
    width = (interval.hi - interval.lo) / interval.value
    digits = 4 - (width > 0.01) - (width > 0.1)
    return number(float(f"{interval.value:.{digits}g}"))


def duration(seconds: float) -> str:
    """Write a duration in the largest unit that suits its length.

    >>> [duration(value) for value in (0.0123, 90, 10440, 400000)]
    ['12.3 ms', '90 s', '2.9 h', '4.6 days']
    """
    scale, unit = duration_unit(seconds)
    return f"{number(seconds / scale)} {unit}"


def duration_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for a duration: its length in seconds and its name."""
    if seconds == 0:
        return 1.0, "s"
    fitting = ((scale, unit) for limit, scale, unit in _DURATIONS if seconds < limit)
    return next(fitting, _DAY)


def duration_ends(interval: Interval) -> str:
    """Write the ends of an interval of seconds, in the unit of its value, without it.

    Ends that differ are written with as many digits as it takes to tell them apart.

    >>> duration_ends(Interval(value=10440.0, lo=10080.0, hi=11160.0))
    '2.8-3.1'
    >>> duration_ends(Interval(value=29520.0, lo=29460.0, hi=29590.0))
    '8.18-8.22'
    """
    scale, _ = duration_unit(interval.value)
    if not math.isfinite(interval.hi):
        return f"{number(interval.lo / scale)} or more"
    return "-".join(_told_apart(interval.lo / scale, interval.hi / scale))


def _told_apart(lo: float, hi: float) -> tuple[str, str]:
    """Write two numbers with the digits that matter, with more where they look alike.

    >>> _told_apart(8.2, 8.2)
    ('8.2', '8.2')
    """
    texts = number(lo), number(hi)
    for digits in range(3, 16):
        parsed = {float(text.replace(",", "")) for text in texts}
        if lo == hi or not math.isfinite(lo) or len(parsed) > 1:
            break
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(hi))))
        texts = f"{lo:,.{decimals}f}", f"{hi:,.{decimals}f}"
    return texts


def duration_range(interval: Interval) -> str:
    """Write the ends of an interval of seconds in the unit of its value.

    >>> duration_range(Interval(value=10440.0, lo=10080.0, hi=11160.0))
    '2.8-3.1 h'
    """
    scale, unit = duration_unit(interval.value)
    if math.isfinite(interval.hi):
        return f"{duration_ends(interval)} {unit}"
    return f"{number(interval.lo / scale)} {unit} or more"


def device_time(hours: float, hour_word: str) -> str:
    """Write a device time; what is less than a hundredth of an hour in seconds.

    >>> device_time(30.6, "GPU-h"), device_time(3.3e-05, "emulated core-h")
    ('30.6 GPU-h', '0.12 emulated core-s')
    >>> device_time(0, "GPU-h")
    '0 GPU-h'
    """
    scale, unit = device_time_unit(hours, hour_word)
    return f"{number(hours / scale)} {unit}"


def device_time_unit(hours: float, hour_word: str) -> tuple[float, str]:
    """Return the unit for a device time: its length in device-hours and its name."""
    if hours >= _FEW_HOURS or hours == 0:
        return 1.0, hour_word
    return 1 / 3600, f"{hour_word.removesuffix('h')}s"


def largest_unit(
    amount: float, units: Sequence[tuple[float, str]]
) -> tuple[float, str]:
    """Return the largest of units that an amount reaches, else the smallest.

    ``units`` are their sizes and names, the smallest first.

    >>> [largest_unit(amount, [(1, "g"), (1e3, "kg")]) for amount in (0.5, 20, 4e3)]
    [(1, 'g'), (1, 'g'), (1000.0, 'kg')]
    """
    return next((unit for unit in reversed(units) if amount >= unit[0]), units[0])


def percent(share: float) -> str:
    """Write a share in percent.

    >>> percent(0.874)
    '87%'
    """
    return f"{100 * share:.0f}%"


def probability(share: float) -> str:
    """Write a probability; above 99% and below 1% the draws say no more than that.

    >>> probability(1.0), probability(0.87), probability(0.0)
    ('> 99%', '87%', '< 1%')
    """
    if share > 0.99:
        return "> 99%"
    return "< 1%" if share < 0.01 else percent(share)


def change(share: float) -> str:
    """Write a relative change with its sign.

    >>> change(-0.45)
    '-45%'
    """
    return f"{round(100 * share):+d}%"


def plural(word: str, count: float) -> str:
    """Return the singular or plural of a word for a count.

    >>> plural("GPU", 1), plural("GPU", 2)
    ('GPU', 'GPUs')
    """
    return word if count == 1 else f"{word}s"


def counted(count: float, word: str) -> str:
    """Write a count with its noun.

    >>> counted(1, "GPU"), counted(4096, "CPU slot")
    ('1 GPU', '4,096 CPU slots')
    """
    return f"{count:,.0f} {plural(word, count)}"


def every(count: int, word: str) -> str:
    """Write that something holds for all of so many things, at the start of a sentence.

    >>> every(1, "run"), every(3, "run")
    ('The one run', 'All 3 runs')
    """
    return f"The one {word}" if count == 1 else f"All {counted(count, word)}"


class DeviceWords(NamedTuple):
    """The name of one device, and of one device for an hour."""

    device: str
    hour: str


SEVERAL = "several"  # types of devices
_DEVICE_WORDS = {
    "cpu": DeviceWords("CPU slot", "core-h"),
    "tpu": DeviceWords("TPU", "TPU-h"),
}


def device_words(device_type: str | None, *, is_emulated: bool) -> DeviceWords:
    """Return the words for devices of this type.

    >>> device_words("cpu", is_emulated=False).hour
    'core-h'
    """
    if is_emulated:
        return DeviceWords("emulated GPU", "emulated GPU-h")
    if device_type == SEVERAL:
        return DeviceWords("device", "device-h")
    return _DEVICE_WORDS.get(device_type or "", DeviceWords("GPU", "GPU-h"))

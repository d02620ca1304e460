"""Durations, sizes and device time as users write them, and as answers print them.

Whatever :mod:`~scalelab.inputs.numerals` writes is read back: ``4h``, ``4.6 days``,
``1,200 GPU-h``, ``0.12 emulated core-s``.
"""

import math
import re
from collections.abc import Mapping

from scalelab.errors import SpecError

_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES = {
    "b": 1.0,
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", 1)},
}
_HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0}
_GPU_HOURS = {
    f"{device}-{unit}": hours
    for device in ("gpu", "core", "tpu", "device", "emulated gpu", "emulated core")
    for unit, hours in _HOURS.items()
}
_KILOWATT_HOURS = {"wh": 1e-3, "kwh": 1.0, "mwh": 1e3, "gwh": 1e6}
_GRAMS = {"g": 1.0, "kg": 1e3, "t": 1e6}
_WATTS = {"w": 1.0, "kw": 1e3}
NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,18})(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"({NUMBER})\s*((?:emulated\s+)?[a-z-]+)", re.ASCII)
_BARE = re.compile(NUMBER, re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    ``HH:MM:SS`` and ``D-HH:MM:SS``, as batch systems write them, are read too.
    """
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    else:
        total = _sum(text, _SECONDS)
    return _positive(total, text, "duration", "'4h', '90min', '1h30min' or '30s'")


def parse_bytes(text: str) -> int:
    """Return a size in bytes."""
    examples = "'16GB', '512MB' or '1.5GiB'"
    return math.ceil(_positive(_sum(text, _BYTES), text, "size", examples))


def parse_energy(text: str) -> float:
    """Return an amount of energy in kWh."""
    examples = "'20kWh' or '500Wh'"
    return _positive(_sum(text, _KILOWATT_HOURS), text, "quantity of energy", examples)


def parse_mass(text: str) -> float:
    """Return a mass in grams, perhaps of CO2 equivalents: ``2 kg CO2e``."""
    mass = text.strip().lower().removesuffix("co2e")
    return _positive(_sum(mass, _GRAMS), text, "mass", "'500g', '2kg' or '1.5t'")


def parse_power(text: str) -> float:
    """Return a power in watts."""
    return _positive(_sum(text, _WATTS), text, "power", "'400W' or '1.2kW'")


def parse_gpu_hours(text: str) -> float:
    """Return an amount of device time in device-hours; a bare number is hours."""
    hours = _sum(text, _GPU_HOURS, bare=1.0)
    return _positive(hours, text, "GPU time", "'10gpu-h' or '30gpu-min'")


def _sum(text: str, units: Mapping[str, float], bare: float = math.nan) -> float:
    # NaN if the text is no quantity; bare is the unit of a number that stands alone.
    rest, total = text.strip().lower(), 0.0
    if _BARE.fullmatch(rest):
        return float(rest.replace(",", "")) * bare
    while found := _QUANTITY.match(rest):
        value = float(found[1].replace(",", ""))
        total += value * units.get(" ".join(found[2].split()), math.nan)
        rest = rest[found.end() :].lstrip()
    return math.nan if rest else total


def _positive(value: float, text: str, noun: str, examples: str) -> float:
    if not 0 < value < math.inf:
        raise SpecError(
            f"{text[:60]!r} is not a {noun}. Write a positive number and a unit, such "
            f"as {examples}.",
            code="not_a_quantity",
        )
    return value

"""Durations, sizes and GPU-hours as users write them: ``4h``, ``16GB``, ``10gpu-h``."""

from __future__ import annotations

import math
import re

from scalelab.errors import SpecError

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_GPU_HOURS = {"gpu-h": 1.0, "gpu-min": 1 / 60, "gpu-d": 24.0}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z-]+)", re.ASCII)
_CLOCK = re.compile(
    r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)",
    re.ASCII,
)


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    ``HH:MM:SS`` and ``D-HH:MM:SS``, as batch systems write them, are read too.

    Raises
    ------
    SpecError
        If the text is not a positive number and a unit.

    >>> parse_duration("1h30min")
    5400.0
    >>> parse_duration("1-00:00:00")
    86400.0
    """
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    else:
        total = _sum(text, _SECONDS)
    return _positive(total, text, "duration", "'4h', '90min', '1h30min' or '30s'")


def parse_bytes(text: str) -> int:
    """Return a size in bytes.

    Raises
    ------
    SpecError
        If the text is not a positive number and a unit.

    >>> parse_bytes("16GB"), parse_bytes("1.5 GiB")
    (16000000000, 1610612736)
    """
    size = _sum(text, _BYTES)
    return math.ceil(_positive(size, text, "size", "'16GB', '512MB' or '1.5GiB'"))


def parse_gpu_hours(text: str) -> float:
    """Return an amount of device time in GPU-hours.

    Raises
    ------
    SpecError
        If the text is not a positive number and a unit.

    >>> parse_gpu_hours("10gpu-h")
    10.0
    """
    hours = _sum(text, _GPU_HOURS)
    return _positive(hours, text, "GPU time", "'10gpu-h' or '30gpu-min'")


def parse_usd(text: str) -> float:
    """Return an amount of money in US dollars.

    Raises
    ------
    SpecError
        If the text is not a positive number and ``usd``.

    >>> parse_usd("20usd"), parse_usd("$2.50")
    (20.0, 2.5)
    """
    spelt = re.sub(r"^\s*\$\s*([0-9.]+)\s*$", r"\1usd", text)
    return _positive(_sum(spelt, {"usd": 1}), text, "price", "'20usd' or '$2.50'")


def _sum(text: str, units: dict[str, int] | dict[str, float]) -> float:
    """Return the sum of the parts of a quantity; NaN if the text is no quantity."""
    rest, total = text.strip().lower(), 0.0
    while found := _QUANTITY.match(rest):
        total += float(found[1]) * units.get(found[2], math.nan)
        rest = rest[found.end() :].lstrip()
    return math.nan if rest else total


def _positive(value: float, text: str, noun: str, examples: str) -> float:
    if not value > 0:
        raise SpecError(
            f"{text[:60]!r} is not a {noun}. Write a positive number and a unit, such "
            f"as {examples}."
        )
    return value

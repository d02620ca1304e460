"""Numbers as people read them: durations, hours of devices, money, limits."""

from __future__ import annotations

from scalelab.recommend.objective import Constraints
from scalelab.recommend.workload_samples import SampleNeed

_UNITS = (("d", 86400.0, 172800.0), ("h", 3600.0, 7200.0), ("min", 60.0, 120.0))


def duration_unit(seconds: float) -> tuple[str, float]:
    """Return the unit a duration is shown in, and its seconds.

    >>> duration_unit(10_000.0)
    ('h', 3600.0)
    """
    for name, size, least in _UNITS:
        if seconds >= least:
            return name, size
    return "s", 1.0


def short(value: float) -> str:
    """Return a number with about 2 significant decimals and no exponent.

    >>> short(2.93), short(41.2), short(0.012), short(1234.5)
    ('2.9', '41', '0.012', '1234')
    """
    if abs(value) >= 10 or value == 0:
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Return a duration with its unit.

    >>> duration(45.0), duration(14_400.0)
    ('45 s', '4.0 h')
    """
    unit, size = duration_unit(seconds)
    return f"{short(seconds / size)} {unit}"


def limit_words(limits: Constraints, need: SampleNeed) -> tuple[str, ...]:
    """Return what a row must hold, in words."""
    words = []
    if limits.max_time_s is not None:
        words.append(f"< {duration(limits.max_time_s)}")
    if limits.max_gpu_hours is not None:
        words.append(f"< {short(limits.max_gpu_hours)} device-h")
    if limits.max_cost_usd is not None:
        words.append(f"< {short(limits.max_cost_usd)} usd")
    if need.uses_law:
        words.append(str(need.target))
    return tuple(words)

"""Axes whose ticks people can read: counts, quantities and durations.

An axis is logarithmic where its values differ much, and linear from zero where they do
not: small differences then look small, and an ideal line is straight on either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import duration, duration_unit, number

Values = Sequence[float] | np.ndarray | pd.Series

_LEAST_LOG_RATIO = 6.0
_MAX_TICKS = 9
_LINEAR_STEPS = 5
_DURATION_TICKS_S = tuple(
    [base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5)]
    + [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800]
    + [3600.0 * hours for hours in (1, 2, 5, 10, 24, 48, 120, 240, 480, 1200, 2400)]
    + [86400.0 * days for days in (200, 500, 1000, 2000, 5000, 10000)]
)


def count_axis(counts: Values, title: str) -> dict[str, Any]:
    """Return an axis with a tick at each count, as far as they stand apart."""
    distinct = np.unique(np.asarray(counts, dtype=float))
    lo, hi = distinct[0], distinct[-1]
    if hi / lo < _LEAST_LOG_RATIO:
        shape: dict[str, Any] = {"type": "linear", "range": [0.0, 1.1 * hi]}
        ticks = _apart(distinct, hi / _MAX_TICKS, np.subtract)
    else:
        margin = 0.06 * np.log10(hi / lo)
        ends = [np.log10(lo) - margin, np.log10(hi) + margin]
        shape = {"type": "log", "range": [float(end) for end in ends]}
        ticks = _apart(distinct, (hi / lo) ** (1 / _MAX_TICKS), np.divide)
    texts = [number(tick) for tick in ticks]
    return shape | {"tickvals": ticks, "ticktext": texts, "title": {"text": title}}


def _apart(
    counts: np.ndarray, least: float, distance: Callable[[float, float], float]
) -> list[float]:
    """Keep the ends, and between them what stands far enough from its neighbours."""
    kept = [float(counts[0])]
    for count in counts[1:-1]:
        if min(distance(count, kept[-1]), distance(counts[-1], count)) >= least:
            kept.append(float(count))
    return kept if len(counts) == 1 else [*kept, float(counts[-1])]


def quantity_axis(values: Values, title: str) -> dict[str, Any]:
    """Return an axis of positive numbers, its ticks at 1, 2 and 5 of every decade."""
    positive = _positive(values)
    lo, hi = positive.min(), positive.max()
    if hi / lo < _LEAST_LOG_RATIO:
        return _linear_axis(hi, 1.0, "", title)
    decades = range(int(np.floor(np.log10(lo))) - 1, int(np.ceil(np.log10(hi))) + 1)
    ticks = [base * 10.0**decade for decade in decades for base in (1, 2, 5)]
    return _log_axis(ticks, lo, hi, number, title)


def duration_axis(values: Values, title: str) -> dict[str, Any]:
    """Return an axis of seconds, its ticks in the usual units of time."""
    positive = _positive(values)
    lo, hi = positive.min(), positive.max()
    if hi / lo < _LEAST_LOG_RATIO:
        return _linear_axis(hi, *duration_unit(hi), title)
    return _log_axis(_DURATION_TICKS_S, lo, hi, _round_duration, title)


def _positive(values: Values) -> np.ndarray:
    known = np.asarray(values, dtype=float)
    return np.asarray(known[np.isfinite(known) & (known > 0)])


def _round_duration(seconds: float) -> str:
    if 60 <= seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if 3600 <= seconds <= 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return duration(seconds)


def _linear_axis(hi: float, unit: float, unit_name: str, title: str) -> dict[str, Any]:
    """Return an axis from zero with round steps of a unit, about five of them."""
    rough = hi / unit / _LINEAR_STEPS
    decade = 10.0 ** np.floor(np.log10(rough))
    bases = np.array([1, 2, 5, 10])
    step = unit * decade * bases[np.abs(bases - rough / decade).argmin()]
    ticks = [float(tick) for tick in np.arange(step, 1.08 * hi, step)]
    return {
        "type": "linear",
        "range": [0.0, float(1.08 * hi)],
        "tickvals": [0.0, *ticks],
        "ticktext": ["0", *(f"{tick / unit:,.6g} {unit_name}" for tick in ticks)],
        "title": {"text": title},
    }


def _log_axis(
    candidates: Sequence[float],
    lo: float,
    hi: float,
    write: Callable[[float], str],
    title: str,
) -> dict[str, Any]:
    margin = 0.08 * np.log10(hi / lo)
    span = [float(np.log10(lo) - margin), float(np.log10(hi) + margin)]
    inside = [tick for tick in candidates if span[0] <= np.log10(tick) <= span[1]]
    ticks = inside[:: -(-len(inside) // _MAX_TICKS)]
    return {
        "type": "log",
        "range": span,
        "tickvals": ticks,
        "ticktext": [write(tick) for tick in ticks],
        "title": {"text": title},
    }

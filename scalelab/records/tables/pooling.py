"""Whether a column that is not read would have told rows of one configuration apart.

Rows of one configuration are repeats of one measurement. If a column that was left
unused has several values among them, and the times differ with its values by more than
repeats scatter, it is a setting: pooling its values would be a mistake.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalelab.inputs.numerals import duration
from scalelab.records.tables.curves import Curves, ImportedRow
from scalelab.records.tables.names import is_measured, reading_of
from scalelab.records.tables.words import shown

_LEAST = math.log(1.03)  # what no setting is asked about
_WITHOUT_REPEATS = math.log(1.1)
_EVIDENT = math.log(1.5)
_SPREADS = 5.0  # of what repeats would differ by
_MEASURED_SHARE = 0.9

Levels = Mapping[str, Sequence[float]]
"""Logarithms of the step times of one configuration, by the value of a column."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """A column whose values make a difference, and two rows that show it."""

    name: str
    fast: ImportedRow
    slow: ImportedRow

    @property
    def sentence(self) -> str:
        """Say what the column does."""
        told = " and ".join(
            f"{duration(row.step_time_s or 0.0)} with {shown(row.cells[self.name])} "
            f"(line {row.line})"
            for row in (self.fast, self.slow)
        )
        return (
            f"the column {shown(self.name)} is not read, and rows that are otherwise "
            f"alike differ with it: a step takes {told}"
        )


def pooled_settings(curves: Curves, unused: Iterable[str]) -> list[Pooled]:
    """Return the unused columns whose values make a difference at one configuration.

    A column of a known meaning never does: another one tells the same. One named like
    a result does only where its values recur and the times differ evidently.
    """
    groups = [rows for rows in curves.configurations().values() if len(rows) > 1]
    found = []
    for name in (each for each in unused if reading_of(each) is None):
        varying = [
            rows for rows in groups if len({row.cells[name] for row in rows}) > 1
        ]
        if not varying or _labels_rows(name, varying):
            continue
        levels = [_levels(name, rows) for rows in varying]
        if _differ(levels) and not (is_measured(name) and _may_be_result(levels)):
            widest = max(
                zip(levels, varying, strict=True), key=lambda each: _gap(each[0])
            )
            found.append(_example(name, *widest))
    return found


def _labels_rows(name: str, groups: Sequence[Sequence[ImportedRow]]) -> bool:
    """Whether nearly each row of several groups has its own value: none recurs."""
    cells = [row.cells[name] for rows in groups for row in rows]
    return len(groups) > 1 and len(set(cells)) > _MEASURED_SHARE * len(cells)


def _levels(name: str, rows: Sequence[ImportedRow]) -> Levels:
    levels: dict[str, list[float]] = {}
    for row in rows:
        levels.setdefault(row.cells[name], []).append(math.log(row.step_time_s or 1.0))
    return levels


def _gap(levels: Levels) -> float:
    medians = [statistics.median(times) for times in levels.values()]
    return max(medians) - min(medians)


def _typical_gap(groups: Sequence[Levels]) -> float:
    gaps = sorted(map(_gap, groups))
    return gaps[math.ceil(0.8 * len(gaps)) - 1]


def _may_be_result(groups: Sequence[Levels]) -> bool:
    """Whether values scatter from row to row, or the times differ little with them."""
    values = [value for levels in groups for value in levels for _ in levels[value]]
    is_of_each_row = len(set(values)) > _MEASURED_SHARE * len(values)
    return is_of_each_row or _typical_gap(groups) <= _EVIDENT


def _differ(groups: Sequence[Levels]) -> bool:
    """Whether the times differ with the value by more than repeats scatter."""
    typical = _typical_gap(groups)
    if (scatter := _scatter_of_repeats(groups)) is not None:
        return typical > max(_LEAST, scatter)
    if typical > _EVIDENT:
        return True
    if (scatter := _scatter_of_effects(groups)) is not None:
        return _largest_effect(groups) > max(_LEAST, scatter)
    return typical > _WITHOUT_REPEATS


def _scatter_of_repeats(groups: Sequence[Levels]) -> float | None:
    """Return what levels may differ by at most, from repeats at one value."""
    repeated = [
        times for levels in groups for times in levels.values() if len(times) > 1
    ]
    free = sum(len(times) - 1 for times in repeated)
    if free < 2:
        return None
    squares = sum(statistics.pvariance(times) * len(times) for times in repeated)
    levels = [times for each in groups for times in each.values()]
    mean_size = statistics.mean(map(len, levels))
    return _SPREADS * math.sqrt(2 * squares / free / mean_size)


def _effects(groups: Sequence[Levels]) -> dict[str, list[float]]:
    """Return by value how far its times are from the middle of its groups."""
    effects: dict[str, list[float]] = {}
    for levels in groups:
        middle = statistics.mean(map(statistics.median, levels.values()))
        for value, times in levels.items():
            effects.setdefault(value, []).append(statistics.median(times) - middle)
    return effects


def _largest_effect(groups: Sequence[Levels]) -> float:
    means = [statistics.mean(each) for each in _effects(groups).values()]
    return max(means) - min(means)


def _scatter_of_effects(groups: Sequence[Levels]) -> float | None:
    """Return what levels may differ by at most, from how steady the difference is."""
    effects = list(_effects(groups).values())
    num_cells = sum(map(len, effects))
    free = num_cells - len(groups) - len(effects) + 1
    if free < 3:
        return None
    squares = sum(statistics.pvariance(each) * len(each) for each in effects)
    mean_size = num_cells / len(effects)
    return _SPREADS * math.sqrt(2 * squares / free / mean_size)


def _example(name: str, levels: Levels, rows: Sequence[ImportedRow]) -> Pooled:
    medians = {value: statistics.median(times) for value, times in levels.items()}
    fast, slow = (
        _middle([row for row in rows if row.cells[name] == value])
        for value in (
            min(medians, key=medians.__getitem__),
            max(medians, key=medians.__getitem__),
        )
    )
    return Pooled(name, fast, slow)


def _middle(rows: Sequence[ImportedRow]) -> ImportedRow:
    return sorted(rows, key=lambda row: row.step_time_s or 0.0)[len(rows) // 2]

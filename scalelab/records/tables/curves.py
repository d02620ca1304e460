"""The curves that an imported table holds, and columns that would tell more apart.

Rows of one configuration are repeats of one measurement. If a column that was left
unused has several values among them, and the times differ with its values by more than
repeats scatter, it is a setting: pooling its values would be a mistake.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.problems import shown
from scalelab.plan.source import Observation
from scalelab.records.columns import CURVE_COLUMNS, OPTION_PREFIX
from scalelab.records.tables.names import is_measured, reading_of

_FEW = 6
_ALLOCATION = ("world_size", "num_nodes", "data_parallel_size")
_BATCH = ("local_batch_size", "gradient_accumulation_steps")
_LEAST = math.log(1.03)  # what no setting is asked about
_WITHOUT_REPEATS = math.log(1.1)
_EVIDENT = math.log(1.5)
_SPREADS = 5.0  # of what repeats would differ by
_MEASURED_SHARE = 0.9

Levels = Mapping[str, Sequence[float]]
"""Logarithms of the step times of one configuration, by the value of a column."""


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A row of a foreign table and the observation that it became."""

    line: int
    cells: Mapping[str, str]
    values: Observation

    @property
    def step_time_s(self) -> float | None:
        """Seconds per step; None where none was measured."""
        found: float | None = self.values.get("step_time_s")
        return found

    @property
    def time_s(self) -> float:
        """Seconds per step of a row of a curve: each has them."""
        return float(self.values["step_time_s"])

    @property
    def work(self) -> int:
        """Samples per step and device."""
        return int(
            self.values["gradient_accumulation_steps"] * self.values["local_batch_size"]
        )


@dataclass(frozen=True, slots=True)
class Curves:
    """The rows of a table by curve."""

    names: Sequence[str]
    rows: Mapping[tuple[Any, ...], Sequence[ImportedRow]]

    @classmethod
    def of(cls, rows: Iterable[ImportedRow]) -> Curves:
        """Divide the rows that have a step time into curves."""
        timed = [row for row in rows if row.step_time_s is not None]
        options = {
            name
            for row in timed
            for name in row.values
            if name.startswith(OPTION_PREFIX)
        }
        names = [
            name
            for name in (*CURVE_COLUMNS, *sorted(options))
            if len({row.values.get(name) for row in timed}) > 1
        ]
        curves: dict[tuple[Any, ...], list[ImportedRow]] = {}
        for row in timed:
            key = tuple(row.values.get(name) for name in names)
            curves.setdefault(key, []).append(row)
        return cls(names, curves)

    @property
    def sentence(self) -> str:
        """How many curves there are, of which columns, with which sizes.

        >>> row = ImportedRow(2, {}, {"workload": "vit", "step_time_s": 0.5})
        >>> Curves.of([row]).sentence
        'They are 1 row of one curve.'
        """
        sizes = list(map(len, self.rows.values()))
        if len(sizes) <= 1:
            return f"They are {counted(sum(sizes), 'row')} of one curve."
        if len(sizes) <= _FEW:
            listed = "; ".join(
                f"{self.called(key)} ({counted(len(rows), 'row')})"
                for key, rows in self.rows.items()
            )
            return f"They are {len(sizes)} curves: {listed}."
        fewest, most = min(sizes), max(sizes)
        each = f"{fewest} to {most} rows" if fewest < most else f"{fewest} each"
        return f"They are {len(sizes):,} curves, by {self.by}, of {each}."

    @property
    def by(self) -> str:
        """The columns in which the curves differ, each with its number of values."""
        counts = [len({key[at] for key in self.rows}) for at in range(len(self.names))]
        named = [
            f"{name.removeprefix(OPTION_PREFIX)} ({count})"
            for name, count in zip(self.names, counts, strict=True)
        ]
        *first, last = named or [""]
        return f"{', '.join(first)} and {last}" if first else last

    def called(self, key: tuple[Any, ...]) -> str:
        """Return the words for one of the curves."""
        return ", ".join(
            f"{name.removeprefix(OPTION_PREFIX)}={value}"
            for name, value in zip(self.names, key, strict=True)
        )

    def configurations(self) -> dict[tuple[Any, ...], list[ImportedRow]]:
        """Return the rows by configuration: those of one are repeats."""
        found: dict[tuple[Any, ...], list[ImportedRow]] = {}
        for key, rows in self.rows.items():
            for row in rows:
                own = tuple(row.values.get(name) for name in (*_ALLOCATION, *_BATCH))
                found.setdefault((key, *own), []).append(row)
        return found


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
            f"{duration(row.time_s)} with {shown(row.cells[self.name])} "
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
        cells = [row.cells[name] for rows in varying for row in rows]
        labels_rows = len(set(cells)) > _MEASURED_SHARE * len(cells)
        if not varying or (labels_rows and len(varying) > 1):
            continue
        levels: list[dict[str, list[float]]] = [{} for _ in varying]
        for by_value, rows in zip(levels, varying, strict=True):
            for row in rows:
                times = by_value.setdefault(row.cells[name], [])
                times.append(math.log(row.time_s))
        medians = [list(map(statistics.median, each.values())) for each in levels]
        gaps = [max(each) - min(each) for each in medians]
        typical = sorted(gaps)[math.ceil(0.8 * len(gaps)) - 1]
        may_be_result = is_measured(name) and (labels_rows or typical <= _EVIDENT)
        if not may_be_result and _differ(levels, typical):
            widest = gaps.index(max(gaps))
            found.append(_example(name, levels[widest], varying[widest]))
    return found


def _differ(groups: Sequence[Levels], typical: float) -> bool:
    """Whether the times differ with the value by more than repeats scatter."""
    levels = [times for each in groups for times in each.values()]
    free = sum(len(times) - 1 for times in levels)
    if free >= 2:
        return typical > max(_LEAST, _scatter(levels, free))
    if typical > _EVIDENT:
        return True
    # without repeats, how steady the difference is
    effects: dict[str, list[float]] = {}
    for group in groups:
        middle = statistics.mean(map(statistics.median, group.values()))
        for value, times in group.items():
            effects.setdefault(value, []).append(statistics.median(times) - middle)
    free = len(levels) - len(groups) - len(effects) + 1
    if free < 3:
        return typical > _WITHOUT_REPEATS
    means = list(map(statistics.mean, effects.values()))
    scatter = _scatter(list(effects.values()), free)
    return max(means) - min(means) > max(_LEAST, scatter)


def _scatter(samples: Sequence[Sequence[float]], free: int) -> float:
    """Return by how much means of samples may differ at most by chance."""
    squares = sum(statistics.pvariance(each) * len(each) for each in samples)
    mean_size = statistics.mean(map(len, samples))
    return _SPREADS * math.sqrt(2 * squares / free / mean_size)


def _example(name: str, levels: Levels, rows: Sequence[ImportedRow]) -> Pooled:
    """Return the rows in the middle of the fastest and the slowest value."""
    values = sorted(levels, key=lambda value: statistics.median(levels[value]))
    of_value = [
        sorted(
            (row for row in rows if row.cells[name] == value),
            key=lambda row: row.time_s,
        )
        for value in (values[0], values[-1])
    ]
    fast, slow = (same[len(same) // 2] for same in of_value)
    return Pooled(name, fast, slow)

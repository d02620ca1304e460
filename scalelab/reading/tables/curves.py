"""The curves of an imported table: rows that differ in devices and batches alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scalelab.inputs.numerals import counted
from scalelab.plan.source import Observation
from scalelab.records.columns import CURVE_COLUMNS, OPTION_PREFIX

_FEW = 6


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A row of a foreign table and the observation that it became."""

    line: int
    cells: Mapping[str, str]
    values: Observation

    @property
    def time_s(self) -> float:
        """Seconds per step; every row of a curve has them."""
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
    def of(cls, rows: Iterable[ImportedRow]) -> Self:
        """Divide the rows that have a step time into curves."""
        timed = [row for row in rows if row.values.get("step_time_s") is not None]
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
        """How many curves there are, of which columns, with which sizes."""
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
        size = f"{fewest} to {most} rows" if fewest < most else f"{fewest} each"
        return f"They are {len(sizes):,} curves, by {self.by}, of {size}."

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

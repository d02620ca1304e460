"""Plain tables of text, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from scalelab.inputs.numerals import number

_MAX_ROWS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """A table of text.

    Parameters
    ----------
    columns
        Titles.
    rows
        Cells, one tuple per row, as long as ``columns``.
    num_omitted
        Rows that exist and are not shown.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_omitted: int = 0

    @classmethod
    def of(cls, frame: pd.DataFrame, max_rows: int = _MAX_ROWS) -> TextTable:
        """Write a frame as text; columns without any value are dropped.

        Parameters
        ----------
        frame : DataFrame
            Any columns; names become titles.
        max_rows
            Rows shown at most, the first ones.
        """
        known = frame.dropna(axis="columns", how="all")
        names = [str(name) for name in known.columns]
        shown = known.head(max_rows)
        return cls(
            columns=tuple(_title(name) for name in names),
            rows=tuple(
                tuple(_cell(value) for value in row)
                for row in shown.itertuples(index=False, name=None)
            ),
            num_omitted=len(frame) - len(shown),
        )

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[str]]) -> TextTable:
        """Return the table of these columns, each with its title first."""
        titles, *rows = zip(*columns.values(), strict=True)
        return cls(columns=titles, rows=tuple(rows))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers; they are aligned to the right."""
        return tuple(
            all(not row[index] or row[index][0] in "+-0123456789" for row in self.rows)
            for index in range(len(self.columns))
        )


def _title(name: str) -> str:
    for ending, unit in (("_per_s", " per s"), ("_lo_s", " from (s)"), ("_s", " (s)")):
        if name.endswith(ending):
            return _spaced(name.removesuffix(ending)) + unit
    return _spaced(name)


def _spaced(name: str) -> str:
    return name.removeprefix("is_").replace("_", " ")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    if isinstance(value, int | float):
        return "" if math.isnan(value) else number(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value)
    return str(value)

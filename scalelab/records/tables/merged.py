"""Merged cells of a spreadsheet: their value stands in the first of their rows only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.records.columns import CURVE_COLUMNS
from scalelab.records.tables.columns import Matching
from scalelab.records.tables.file import ForeignTable, TableRow
from scalelab.records.tables.words import lines_listed, shown

Cells = Mapping[int, str]
"""The cells of a column by line: melted rows of one line share theirs."""


def unmerged(
    table: ForeignTable, matching: Matching
) -> tuple[ForeignTable, tuple[str, ...]]:
    """Fill merged cells of the columns that tell curves apart; say which.

    A merged cell is empty below a filled one. Where the same value stands in the next
    filled cell again although no other merged cell ends there, the cells are not
    merged: an empty one of a setting then says that it is not used.
    """
    curve_columns = [
        theirs for ours, theirs in matching.columns.items() if ours in CURVE_COLUMNS
    ]
    columns = {
        name: {row.line: row.cells[name] for row in table.rows}
        for name in (*curve_columns, *matching.options.values())
    }
    with_gaps = {
        name: cells
        for name, cells in columns.items()
        if any(cells.values()) and not all(cells.values())
    }
    filled: dict[str, Cells] = {}
    for name, cells in with_gaps.items():
        again = _stands_again(name, with_gaps)
        if name not in curve_columns and (again or not _is_empty_below(cells)):
            continue
        _refuse_no_value_above(table, name, cells)
        if again:
            _refuse_not_merged(table, name, cells, again)
        filled[name] = _with_value_above(cells)
    if not filled:
        return table, ()
    rows = tuple(_filled(row, filled) for row in table.rows)
    told = tuple(
        f"Read empty cells of {shown(name)} as the value above: "
        f"{counted(sum(not cell for cell in with_gaps[name].values()), 'row')}."
        for name in filled
    )
    return replace(table, rows=rows), told


def _stands_again(name: str, columns: Mapping[str, Cells]) -> int | None:
    """Return the line in which the value above stands again for no reason."""
    ended = {line for other in columns for line in _changes(columns[other])}
    cells = columns[name]
    lines = [line for line, cell in cells.items() if cell]
    for before, line in pairwise(lines):
        if cells[line] == cells[before] and line not in ended:
            return line
    return None


def _changes(cells: Cells) -> list[int]:
    lines = [line for line, cell in cells.items() if cell]
    return [line for before, line in pairwise(lines) if cells[line] != cells[before]]


def _is_empty_below(cells: Cells) -> bool:
    texts = list(cells.values())
    first = next(at for at, text in enumerate(texts) if text)
    return not all(texts[first:])


def _refuse_no_value_above(table: ForeignTable, name: str, cells: Cells) -> None:
    first = next(line for line, cell in cells.items() if cell)
    if above := [line for line in cells if line < first]:
        raise SpecError(
            f"{table.path}: the column {shown(name)} is empty in {lines_listed(above)},"
            f" above its first value, {shown(cells[first])} in line {first}. It tells "
            "curves apart: write the value in every row, or at least in the first."
        )


def _refuse_not_merged(
    table: ForeignTable, name: str, cells: Cells, again: int
) -> None:
    empty = [line for line, cell in cells.items() if not cell]
    raise SpecError(
        f"{table.path}: the column {shown(name)} is empty in {lines_listed(empty)}. "
        f"These are no merged cells: {shown(cells[again])} stands in line {again} "
        "again. The column tells curves apart: write the value in every row."
    )


def _with_value_above(cells: Cells) -> Cells:
    filled, value = {}, ""
    for line, cell in cells.items():
        value = cell or value
        filled[line] = value
    return filled


def _filled(row: TableRow, columns: Mapping[str, Cells]) -> TableRow:
    cells = {name: each[row.line] for name, each in columns.items()}
    return TableRow(row.line, {**row.cells, **cells})

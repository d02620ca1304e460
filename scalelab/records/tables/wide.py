"""Wide tables: those whose further columns are named by a value, such as ``8 GPUs``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import replace

from scalelab.errors import SpecError
from scalelab.records.columns import COLUMNS_BY_NAME
from scalelab.records.tables.file import ForeignTable, TableRow
from scalelab.records.tables.names import (
    SETTABLE,
    is_axis,
    is_known,
    is_measured,
    reading_of,
)
from scalelab.records.tables.numerals import is_missing
from scalelab.records.tables.options import ImportOptions
from scalelab.records.tables.values import failure
from scalelab.records.tables.words import listed, shown

_COUNT = re.compile(
    r"(?:(?<![a-z\d.])|(?<=gpu)|(?<=gpus)|(?<=tpu)|(?<![a-z])(?!p50|p9\d)[npx])"
    r"(\d+)(?![\d.])",
    re.IGNORECASE,
)
_BEGINS_LIKE_A_NUMBER = re.compile(r"[+-]?[\d.]")
_PLAIN = re.compile(r"([+-]?[\d,]*\.?\d+)( ?[a-z/%]+)?", re.IGNORECASE)
_LEAST_NAMED = 3
_LIKE_SIZE = 100.0
_SPEEDS = ("step_time_s", "throughput_samples_per_s")


def melted(table: ForeignTable, asked: ImportOptions) -> ForeignTable:
    """Return a table with one row for each cell under a name that is a value.

    Empty cells have no row. Where the names hold numbers, the columns are those with
    one number in their name, else those that hold numbers; none of them is known by its
    name, asked for otherwise, or something measured.
    """
    if not asked.melt:
        return table
    ((ours, cells),) = asked.melt.items()
    _check(table, ours, cells)
    taken = {*asked.ignore, *asked.axis, *asked.column.values()}
    of_name = {
        name: value
        for name in table.names
        if name not in taken and (value := _value_in(ours)(table, name))
    }
    if not of_name:
        raise SpecError(
            f"{table.path} has no further columns whose names hold {ours}: those with "
            f"a well-known name are read as such. Its columns: {listed(table.names)}. "
            "Rename them, or leave --melt out."
        )
    kept = tuple(name for name in table.names if name not in of_name)
    rows = tuple(
        TableRow(
            row.line,
            {**{each: row.cells[each] for each in kept}, ours: value, cells: text},
        )
        for row in table.rows
        for name, value in of_name.items()
        if not is_missing(text := row.cells[name])
    )
    return replace(table, names=(*kept, ours, cells), rows=rows)


def hint(table: ForeignTable, wanted: set[str], others: list[str]) -> str:
    """Return what to do if a table that lacks columns is wide; empty if it is not."""
    counts = [name for name in others if _number_in(table, name)]
    filled = [name for name in others if _filled_with_numbers(table, name)]
    if len(counts) > 1:
        names, ours = counts, "world_size"
    elif len(filled) >= _LEAST_NAMED and _are_alike(table, filled):
        names, ours = filled, "workload"
    else:
        return ""
    if not wanted.intersection(_SPEEDS):
        return ""
    return (
        f" If the names of {shown(names[0])}, {shown(names[1])}, ... are values of one "
        f"thing, say of which, and what their cells hold: --melt {ours}="
        "throughput_samples_per_s."
    )


def _are_alike(table: ForeignTable, names: list[str]) -> bool:
    """Whether columns hold numbers of one kind: all whole or none, of like size."""
    medians, kinds = [], set()
    for name in names:
        cells = [row.cells[name] for row in table.rows]
        filled = [each for each in cells if not is_missing(each) and not failure(each)]
        texts = list(filter(None, map(_PLAIN.fullmatch, filled)))
        if not texts or len(texts) < len(filled):
            return False
        numbers = [float(text[1].replace(",", "")) for text in texts]
        medians.append(statistics.median(numbers))
        kinds.add(all(map(float.is_integer, numbers)))
    return len(kinds) == 1 and max(medians) <= _LIKE_SIZE * min(medians)


def _check(table: ForeignTable, ours: str, cells: str) -> None:
    known = reading_of(cells)
    if ours in SETTABLE and known is not None and known.column in _SPEEDS:
        _refuse_second(table, ours)
        _refuse_second(table, cells)
        return
    raise SpecError(
        f"--melt {ours}={cells}: the first is a column of ours that the names of "
        f"{table.path.name}'s columns hold, such as world_size, workload or "
        "device_name; the second is what their cells hold, such as "
        "throughput_samples_per_s or step_time_ms. Correct the one that is neither."
    )


def _refuse_second(table: ForeignTable, name: str) -> None:
    if name in table.names:
        raise SpecError(
            f"{table.path} has a column {shown(name)}, which --melt is to fill from "
            "the names and the cells of others. Rename it, or leave --melt out."
        )


def _value_in(ours: str) -> Callable[[ForeignTable, str], str]:
    is_number = COLUMNS_BY_NAME[ours].kind in ("integer", "number")
    return _number_in if is_number else _filled_with_numbers


def _number_in(table: ForeignTable, name: str) -> str:
    """Return the number in a name of a column of numbers, if it has just one."""
    found = _COUNT.findall(name)
    return found[0] if len(found) == 1 and _filled_with_numbers(table, name) else ""


def _filled_with_numbers(table: ForeignTable, name: str) -> str:
    """Return the name of an unknown column that holds numbers, else nothing."""
    if is_known(name) or is_axis(name) or is_measured(name):
        return ""
    filled = [row.cells[name] for row in table.rows if not is_missing(row.cells[name])]
    numbers = sum(
        bool(_BEGINS_LIKE_A_NUMBER.match(cell)) or failure(cell) is not None
        for cell in filled
    )
    return name if filled and numbers == len(filled) else ""

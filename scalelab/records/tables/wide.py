"""Wide tables: those whose further columns are named by a value, such as ``8 GPUs``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
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
from scalelab.records.tables.options import ImportOptions, listed
from scalelab.records.tables.values import failure

_COUNT = re.compile(
    r"(?:(?<![a-z\d.])|(?<=gpu)|(?<=gpus)|(?<=tpu)|(?<![a-z])(?!p50|p9\d)[npx])"
    r"(\d+)(?![\d.])",
    re.IGNORECASE,
)
_BEGINS_LIKE_A_NUMBER = re.compile(r"[+-]?[\d.]")
_LEAST_NAMED = 3
_SPEEDS = ("step_time_s", "throughput_samples_per_s")


def melted(table: ForeignTable, asked: ImportOptions) -> ForeignTable:
    """Return a table with one row for each cell under a name that is a value.

    Empty cells have no row. Where the names hold numbers, the columns are those with
    one number in their name, else those that hold numbers; none of them is known by its
    name, asked for otherwise, or something measured.
    """
    if not asked.melt:
        return table
    if len(asked.melt) > 1:
        raise SpecError(
            f"melt names {len(asked.melt)} columns, {', '.join(asked.melt)}. The "
            "names of a wide table's columns hold one thing; name one."
        )
    ((ours, cells),) = asked.melt.items()
    known = reading_of(cells)
    if ours not in SETTABLE or known is None or known.column not in _SPEEDS:
        raise SpecError(
            f"--melt {ours}={cells}: the first is a column of ours that the names of "
            f"{table.path.name}'s columns hold, such as world_size, workload or "
            "device_name; the second is what their cells hold, such as "
            "throughput_samples_per_s or step_time_ms. Correct the one that is neither."
        )
    for name in (ours, cells):
        if name in table.names:
            raise SpecError(
                f"{table.path} has a column {shown(name)}, which --melt is to fill "
                "from the names and the cells of others. Rename it, or leave --melt "
                "out."
            )
    taken = {*asked.ignore, *asked.axis, *asked.column.values()}
    free = [name for name in table.names if name not in taken]
    is_number = COLUMNS_BY_NAME[ours].kind in ("integer", "number")
    of_name = (
        _by_number(table, free)
        if is_number
        else {name: name for name in free if _is_of_numbers(table, name)}
    )
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


def hint(table: ForeignTable, others: Sequence[str]) -> Iterator[str]:
    """Yield what to do if a table that lacks a speed is wide."""
    counts = list(_by_number(table, others))
    filled = [name for name in others if _is_of_numbers(table, name)]
    if len(counts) > 1:
        names, ours = counts, "world_size"
    elif len(filled) >= _LEAST_NAMED:
        names, ours = filled, "workload"
    else:
        return
    yield (
        f"If the names of {shown(names[0])}, {shown(names[1])}, ... are values of one "
        f"thing, say of which, and what their cells hold: --melt {ours}="
        "throughput_samples_per_s."
    )


def _by_number(table: ForeignTable, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of numbers with just one number in their name, and that."""
    found = {name: _COUNT.findall(name) for name in names}
    return {
        name: numbers[0]
        for name, numbers in found.items()
        if len(numbers) == 1 and _is_of_numbers(table, name)
    }


def _is_of_numbers(table: ForeignTable, name: str) -> bool:
    """Whether a column of an unknown name holds numbers."""
    if is_known(name) or is_axis(name) or is_measured(name):
        return False
    filled = [row.cells[name] for row in table.rows if not is_missing(row.cells[name])]
    return bool(filled) and all(
        _BEGINS_LIKE_A_NUMBER.match(cell) or failure(cell) for cell in filled
    )

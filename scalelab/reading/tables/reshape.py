"""Wide tables: columns whose names hold values become rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
from scalelab.inputs.target import Target
from scalelab.inputs.wording import Option
from scalelab.reading.tables.file import ForeignTable, ImportArguments, TableRow, listed
from scalelab.reading.tables.names import (
    SETTABLE,
    SPEEDS,
    goal_of,
    is_axis,
    is_known,
    is_measured,
    meaning_of,
    unit_in,
)
from scalelab.reading.tables.values import failure, is_missing
from scalelab.records.columns import COLUMNS_BY_NAME, TARGET_COLUMNS

_COUNT_IN_NAME = re.compile(
    r"(?:(?<![a-z\d.])|(?<=gpu)|(?<=gpus)|(?<=tpu)|(?<![a-z])(?!p50|p9\d)[npx])"
    r"(\d+)(?![\d.])",
    re.IGNORECASE,
)
_BEGINS_LIKE_A_NUMBER = re.compile(r"[+-]?[\d.]")


def melted(table: ForeignTable, asked: ImportArguments) -> ForeignTable:
    """Return a table with one row for each cell under a name that is a value.

    Empty cells have no row. Where the names hold numbers, the columns are those with
    one number in their name, else those that hold numbers; none of them is known by its
    name, asked for otherwise, or something measured. Where names hold a unit, the
    columns are those with that unit, in which they are read.
    """
    if not asked.melt:
        return table
    ours, cells = _check_melt(table, asked)
    taken = {*asked.ignore, *asked.axis, *asked.column.values()}

    free = [name for name in table.names if name not in taken]
    if COLUMNS_BY_NAME[ours].kind in ("integer", "number"):
        values = by_number(table, free)
    else:
        values = {name: name for name in free if is_of_numbers(table, name)}

    if not values:
        raise SpecError(
            f"{table.path} has no further columns whose names hold {ours}: those with "
            f"a well-known name are read as such. Its columns: {listed(table.names)}. "
            f"Rename them, or leave {Option('melt')} out."
        )

    # what the names say goes before what was asked
    if unit := next(filter(None, map(unit_in, values)), None):
        cells, values = unit, _of_unit(values, unit)

    kept = tuple(name for name in table.names if name not in values)
    rows = tuple(
        TableRow(
            row.line,
            {**{name: row.cells[name] for name in kept}, ours: value, cells: text},
        )
        for row in table.rows
        for name, value in values.items()
        if not is_missing(text := row.cells[name])
    )
    return replace(table, names=(*kept, ours, cells), rows=rows)


def _of_unit(values: Mapping[str, str], unit: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if unit_in(name) == unit}


def _check_melt(table: ForeignTable, asked: ImportArguments) -> tuple[str, str]:
    if len(asked.melt) > 1:
        raise SpecError(
            f"melt names {len(asked.melt)} columns, {', '.join(asked.melt)}. The "
            "names of a wide table's columns hold one thing; name one."
        )

    ((ours, cells),) = asked.melt.items()
    known = meaning_of(cells)
    if ours not in SETTABLE or known is None or known.column not in SPEEDS:
        raise SpecError(
            f"{Option('melt', cells, key=ours)}: the first is a column of ours that "
            f"the names of {table.path.name}'s columns hold, such as world_size, "
            "workload or device_name; the second is what their cells hold, such as "
            "throughput_samples_per_s or step_time_ms.",
            "Correct the one that is neither.",
        )

    for name in (ours, cells):
        if name in table.names:
            raise SpecError(
                f"{table.path} has a column {shown(name)}, which {Option('melt')} is "
                "to fill from the names and the cells of others.",
                f"Rename it, or leave {Option('melt')} out.",
            )

    return ours, cells


def by_number(table: ForeignTable, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of numbers with just one number in their name, and that."""
    found = {name: _COUNT_IN_NAME.findall(name) for name in names}
    return {
        name: numbers[0]
        for name, numbers in found.items()
        if len(numbers) == 1 and is_of_numbers(table, name)
    }


def is_of_numbers(table: ForeignTable, name: str) -> bool:
    """Tell whether a column of unknown meaning holds numbers."""
    if is_known(name) or is_axis(name) or is_measured(name):
        return False
    filled = table.filled(name)
    return bool(filled) and all(
        _BEGINS_LIKE_A_NUMBER.match(cell) or failure(cell) for cell in filled
    )


def by_goal(table: ForeignTable, asked: ImportArguments) -> ForeignTable:
    """Return a table with the target in columns of its own, a row for each target.

    ``time_to_75_s`` becomes ``time_to_target_s`` with a target of 75. A table that
    names its target otherwise, or columns that are asked for, stay as they are.
    """
    goals = _goals(table, asked)
    given = {*asked.constant, *(r.column for r in map(meaning_of, table.names) if r)}
    if not goals or not given.isdisjoint(TARGET_COLUMNS):
        return table

    kept = tuple(name for name in table.names if name not in goals)
    columns: dict[Target, dict[str, str]] = {}
    for theirs, (ours, goal) in goals.items():
        columns.setdefault(goal, {})[ours] = theirs

    filled = dict.fromkeys(
        (name for names_by_column in columns.values() for name in names_by_column), ""
    )
    rows = [
        TableRow(
            row.line, {**{name: row.cells[name] for name in kept}, **filled, **cells}
        )
        for row in table.rows
        for cells in _trainings(row, columns)
    ]
    return replace(table, names=(*kept, *filled, *TARGET_COLUMNS), rows=tuple(rows))


def _goals(
    table: ForeignTable, asked: ImportArguments
) -> dict[str, tuple[str, Target]]:
    taken = {*asked.ignore, *asked.axis, *asked.column.values()}
    found = {name: goal_of(name) for name in table.names if name not in taken}
    return {name: goal for name, goal in found.items() if goal}


def _trainings(
    row: TableRow, columns: Mapping[Target, Mapping[str, str]]
) -> Iterator[dict[str, str]]:
    """Yield the cells of each target; of several, only of those that a row tells."""
    for goal, names_by_column in columns.items():
        cells = {ours: row.cells[theirs] for ours, theirs in names_by_column.items()}
        if len(columns) == 1 or not all(map(is_missing, cells.values())):
            target = (goal.metric, str(goal.mode), repr(goal.value))
            yield {**cells, **dict(zip(TARGET_COLUMNS, target, strict=True))}

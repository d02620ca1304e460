"""Columns of times and lengths until a metric had a value, one row for each value."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from scalelab.inputs.target import Target
from scalelab.reading.tables.file import ForeignTable, ImportArguments, TableRow
from scalelab.reading.tables.names import goal_of, reading_of
from scalelab.reading.tables.values import is_missing
from scalelab.records.columns import TARGET_COLUMNS


def by_goal(table: ForeignTable, asked: ImportArguments) -> ForeignTable:
    """Return a table with the target in columns of its own, a row for each target.

    ``time_to_75_s`` becomes ``time_to_target_s`` with a target of 75. A table that
    names its target otherwise, or columns that are asked for, stay as they are.
    """
    goals = _goals(table, asked)
    given = {*asked.constant, *(r.column for r in map(reading_of, table.names) if r)}
    if not goals or not given.isdisjoint(TARGET_COLUMNS):
        return table
    kept = tuple(name for name in table.names if name not in goals)
    columns: dict[Target, dict[str, str]] = {}
    for theirs, (ours, goal) in goals.items():
        columns.setdefault(goal, {})[ours] = theirs
    filled = dict.fromkeys((name for own in columns.values() for name in own), "")
    rows = [
        TableRow(row.line, {**{name: row.cells[name] for name in kept}, **filled, **of})
        for row in table.rows
        for of in _trainings(row, columns)
    ]
    return replace(table, names=(*kept, *filled, *TARGET_COLUMNS), rows=tuple(rows))


def _goals(
    table: ForeignTable, asked: ImportArguments
) -> dict[str, tuple[str, Target]]:
    taken = {*asked.ignore, *asked.axis, *asked.column.values()}
    found = {name: goal_of(name) for name in table.names if name not in taken}
    return {name: each for name, each in found.items() if each}


def _trainings(
    row: TableRow, columns: Mapping[Target, Mapping[str, str]]
) -> Iterator[dict[str, str]]:
    """Yield the cells of each target; of several, only of those that a row tells."""
    for goal, own in columns.items():
        cells = {ours: row.cells[theirs] for ours, theirs in own.items()}
        if len(columns) == 1 or not all(map(is_missing, cells.values())):
            target = (goal.metric, str(goal.mode), repr(goal.value))
            yield {**cells, **dict(zip(TARGET_COLUMNS, target, strict=True))}

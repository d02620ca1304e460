"""Rows that ``scalelab export`` wrote, one per attempt: they are read back as they are.

Equal trials of several runs are kept apart, by other identities.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
from scalelab.reading.tables.curves import ImportedRow
from scalelab.reading.tables.file import ForeignTable, TableRow
from scalelab.reading.tables.values import parse, parse_option
from scalelab.records.columns import COLUMNS_BY_NAME, OPTION_PREFIX
from scalelab.records.observations import check_row, check_types

# Columns that no foreign table has together
_OWN = {"schema_version", "run", "trial_id", "attempt", "kind", "outcome", "validity"}


def is_exported(table: ForeignTable) -> bool:
    """Tell whether a table holds attempts as ScaleLab writes them."""
    return _OWN <= {*table.names}


def exported_rows(table: ForeignTable) -> list[ImportedRow]:
    """Return the attempts of an exported table.

    Raises
    ------
    SpecError
        If a cell is not what ScaleLab writes, or an attempt stands there twice.
    """
    settings = {
        name: parse_option([row.cells[name] for row in table.rows])
        for name in table.names
        if name.startswith(OPTION_PREFIX)
    }
    found, lines = [], dict[tuple[str, int], int]()
    runs = {(row.cells["trial_id"], row.cells["run"]) for row in table.rows}

    num_runs = Counter(trial_id for trial_id, _ in runs)
    for index, row in enumerate(table.rows):
        options = {name: values[index] for name, values in settings.items()}
        values = _checked(table, row, {**options, **dict(_cells(table, row))})
        if num_runs[values["trial_id"]] > 1:
            words = f"{values['run']}/{values['trial_id']}"
            values["trial_id"] = hashlib.sha256(words.encode()).hexdigest()[:12]

        key = values["trial_id"], values["attempt"]
        if (first := lines.setdefault(key, row.line)) != row.line:
            raise SpecError(
                f"{table.path}, line {row.line}: attempt {values['attempt']} of trial "
                f"{row.cells['trial_id']} stands in line {first}, too. Remove one."
            )

        found.append(ImportedRow(row.line, row.cells, values))

    return found


def _cells(table: ForeignTable, row: TableRow) -> Iterator[tuple[str, Any]]:
    for name in table.names:
        if name in COLUMNS_BY_NAME:
            try:
                yield name, parse(name, row.cells[name])
            except ValueError as error:
                raise SpecError(
                    f"{table.path}, line {row.line}, column {name}: "
                    f"{shown(row.cells[name])} {error}. Export the run again."
                ) from error


def _checked(table: ForeignTable, row: TableRow, values: dict[str, Any]) -> Any:
    try:
        return check_types(check_row(values))
    except ValueError as error:
        raise SpecError(
            f"{table.path}, line {row.line}: {error}. Export the run again."
        ) from error

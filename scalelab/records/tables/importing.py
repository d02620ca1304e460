"""Import a foreign table of measurements as a run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation
from scalelab.records.columns import COLUMNS_BY_NAME, OPTION_PREFIX, SCHEMA_VERSION
from scalelab.records.store import RunStore
from scalelab.records.tables.columns import Matching, match_columns
from scalelab.records.tables.file import ForeignTable, read_table, shown
from scalelab.records.tables.values import complete, parse, parse_option

_CONFIGURATION = (
    "workload",
    "dataset",
    "parallelism",
    "device_type",
    "device_name",
    "num_nodes",
    "gpus_per_node",
    "world_size",
    "data_parallel_size",
    "placement",
    "threads_per_rank",
    "local_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
    "normalization_batch_size",
    "sequence_length",
    "precision",
    "optimizer",
    "lr_rule",
    "learning_rate",
    "schedule",
    "seed",
)


def import_table(
    table: Path,
    run_directory: Path,
    mapping: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
) -> RunStore:
    """Make a run of a foreign table, one row of kind ``imported`` per row.

    Columns are found by ``mapping``, by the names of ``records.columns`` and by
    well-known aliases; every other column becomes ``options.<name>``. Needed are the
    devices and nodes, a batch size, and a step time or a throughput; what follows from
    them is filled in, and what contradicts them is refused. Rows of equal configuration
    are repeats of one another.

    Parameters
    ----------
    table
        CSV (comma-separated, UTF-8, with a header) or Parquet.
    run_directory
        Where the run is made; must not exist.
    mapping
        The table's column for a column of the observations, e.g.
        ``{"step_time_s": "t_iter"}``.
    constants
        Text of the value a column has in every row, e.g. ``{"num_nodes": "1"}``.

    Returns
    -------
    RunStore
        The new run.

    Raises
    ------
    SpecError
        If the table or the mapping is wrong: file, line, column, value, rule, remedy.
    StoreError
        If the run exists or cannot be written. Either way nothing is left behind.
    """
    foreign = read_table(table)
    mapping, constants = mapping or {}, constants or {}
    matching = match_columns(foreign, mapping, constants)
    fixed = {name: _constant(name, text) for name, text in constants.items()}
    rows = list(_rows(foreign, matching, fixed, run_directory.absolute().name))
    source = {
        "table": table.name,
        "sha256": foreign.sha256,
        "columns": {**matching.columns, **matching.options},
        "constants": dict(constants),
    }
    return RunStore.create(
        run_directory,
        experiment_text=json.dumps({"imported": source}, indent=2) + "\n",
        fingerprint={"imported": source},
        imported=rows,
    )


def _constant(name: str, text: str) -> Any:
    if name.startswith(OPTION_PREFIX):
        return parse_option([text])[0]
    try:
        value = parse(name, text)
    except ValueError as error:
        raise SpecError(f"{name}={shown(text)} {error}.") from error
    if value is None:
        raise SpecError(f"{name}={shown(text)} is empty. Give a value or leave it out.")
    return value


def _rows(
    table: ForeignTable, matching: Matching, fixed: Mapping[str, Any], run: str
) -> Iterator[Observation]:
    options = {
        name: parse_option([each.cells[theirs] for each in table.rows])
        for name, theirs in matching.options.items()
    }
    base = {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "attempt": 1,
        "kind": "imported",
        "emulated": False,
        "outcome": str(Outcome.COMPLETED),
        "workload": table.path.stem,
        "validity": [],
        **fixed,
    }
    repeats: Counter[str] = Counter()
    lines: dict[str, int] = {}
    for index, each in enumerate(table.rows):
        values = {**base, **{name: column[index] for name, column in options.items()}}
        for name, theirs in matching.columns.items():
            value = _cell(table, each.line, name, theirs, each.cells[theirs])
            if value is not None:
                values[name] = value
        try:
            values = complete(values)
        except SpecError as error:
            raise SpecError(f"{table.path}, line {each.line}: {error}") from error
        configuration = _configuration(values)
        values.setdefault("repeat", repeats[configuration])
        repeats[configuration] += 1
        values["trial_id"] = _hash(configuration, values["repeat"])
        _check_unique(table, lines, values, each.line)
        yield values


def _cell(table: ForeignTable, line: int, name: str, theirs: str, text: str) -> Any:
    try:
        return parse(name, text)
    except ValueError as error:
        column = f"column {shown(theirs)}" + ("" if theirs == name else f" ({name})")
        unit = COLUMNS_BY_NAME[name].meaning.rstrip(".")
        raise SpecError(
            f"{table.path}, line {line}, {column}: {shown(text)} {error} ({unit}). "
            "Correct the cell or remove the row."
        ) from error


def _configuration(values: Mapping[str, Any]) -> str:
    """Return canonical text that is equal for rows that repeat each other."""
    names = [name for name in values if name.startswith(OPTION_PREFIX)]
    chosen = {name: values.get(name) for name in (*_CONFIGURATION, *names)}
    return json.dumps(chosen, sort_keys=True, separators=(",", ":"))


def _hash(configuration: str, repeat: int) -> str:
    return hashlib.sha256(f"{repeat}{configuration}".encode()).hexdigest()[:12]


def _check_unique(
    table: ForeignTable, lines: dict[str, int], values: Mapping[str, Any], line: int
) -> None:
    first = lines.setdefault(values["trial_id"], line)
    if first != line:
        raise SpecError(
            f"{table.path}, line {line}: the same configuration and "
            f"repeat={values['repeat']} stand in line {first}. Number the repeats "
            "differently, or remove the column: then they are counted."
        )

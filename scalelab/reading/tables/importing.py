"""Import a foreign table of measurements as a run.

Rows that ``scalelab export`` wrote, one per attempt, are read back as they are. Equal
trials of several runs are kept apart, by other identities.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.problems import shown
from scalelab.inputs.target import MetricMode, Target
from scalelab.inputs.wording import Option
from scalelab.reading.tables.curves import Curves, ImportedRow
from scalelab.reading.tables.doubt import doubt
from scalelab.reading.tables.file import (
    ForeignTable,
    ImportArguments,
    TableRow,
    read_table,
)
from scalelab.reading.tables.match import Matching, match
from scalelab.reading.tables.prices import TablePrices
from scalelab.reading.tables.read import UNNAMED_TARGET, read
from scalelab.reading.tables.reshape import by_goal, melted
from scalelab.reading.tables.values import parse, parse_option
from scalelab.records.columns import COLUMNS_BY_NAME, OPTION_PREFIX
from scalelab.records.observations import check_row, check_types
from scalelab.records.store import RunStore

_PLACES = {"table", "directory"}


def import_table(asked: ImportArguments) -> RunStore:
    """Make a run of a foreign table, one row of kind ``imported`` per row.

    Columns are found by what is asked, by the names of ``records.columns`` and by
    well-known aliases, in the unit that their name says. Well-known settings become
    ``options.<name>``; any other column is left unused. Needed are the devices and
    nodes, a batch size, and a step time or a throughput; what follows from them is
    filled in, and what contradicts them is refused. Rows of equal configuration are
    repeats of one another. A row without a time is left out, unless a cell says that
    the device ran out of memory or that the trial failed.
    """
    table, run_directory = Path(asked.table), Path(asked.directory)
    foreign = read_table(table, asked.header_row)

    is_asked = asked.model_dump(exclude_defaults=True, exclude=_PLACES)
    if is_exported(foreign) and not is_asked:
        return _read_back(foreign, run_directory)

    foreign = by_goal(melted(foreign, asked), asked)
    matching = match(foreign, asked)
    found = read(foreign, matching, asked, run_directory.absolute().name)
    rows, curves = found.value, Curves.of(found.value)
    placed = [row for row in rows if "world_size" in row.values]

    refused, mentioned = doubt(matching, curves, placed, asked.constant)
    if refused and not asked.accept_doubts:
        more = f" (1 of {len(refused)} doubts)" if len(refused) > 1 else ""
        raise SpecError(
            f"{table}{more}: {refused[0]}",
            f"To import the table as it is, say {Option('accept_doubts', True)}.",
        )

    trainings, target = _trainings(rows)
    prices = TablePrices.of(matching.unused, rows)
    unused = tuple(n for n in matching.unused if n not in prices.columns)
    matching = replace(matching, unused=unused)
    source = {
        "table": table.name,
        "sha256": foreign.sha256,
        "columns": matching.theirs,
        "constants": {name: str(value) for name, value in asked.constant.items()},
        "unused": list(matching.unused),
        **({"target": target} if target else {}),
        **({"prices": list(prices.entries)} if prices.entries else {}),
        "told": [
            *([curves.sentence] if curves.rows else []),
            *trainings,
            *_how_read(matching),
            *prices.notes,
            *foreign.passed_over,
            *found.evidence,
            *_on_one_node(placed),
        ],
        "doubts": [*refused, *mentioned],
    }
    return _made(foreign, run_directory, source, rows, is_asked)


def _read_back(table: ForeignTable, run_directory: Path) -> RunStore:
    rows = exported_rows(table)
    trainings, target = _trainings(rows)
    names = dict.fromkeys(str(row.values["run"]) for row in rows)
    source = {
        "table": table.path.name,
        "sha256": table.sha256,
        "columns": {name: name for name in table.names},
        **({"target": target} if target else {}),
        "told": [f"ScaleLab wrote these rows, of {', '.join(names)}.", *trainings],
        "doubts": [],
    }
    return _made(table, run_directory, source, rows, {})


def _made(
    table: ForeignTable,
    run_directory: Path,
    source: Mapping[str, Any],
    rows: Sequence[ImportedRow],
    arguments: Mapping[str, Any],
) -> RunStore:
    return RunStore.create(
        run_directory,
        experiment_text=json.dumps({"imported": source}, indent=2) + "\n",
        fingerprint={"imported": source},
        source={"file": str(table.path.absolute()), "arguments": arguments},
        imported=[row.values for row in rows],
    )


def _how_read(matching: Matching) -> Iterator[str]:
    named = []
    for name, meaning in matching.columns.items():
        words_of_meaning = [
            words
            for words, is_so in (
                ("steps per second", meaning.is_step_rate),
                ("of one device", meaning.is_per_device),
                ("tokens / sequence_length", meaning.is_in_tokens),
                (f"in {meaning.unit}", meaning.factor != 1),
            )
            if is_so
        ]
        how = f" ({', '.join(words_of_meaning)})" if words_of_meaning else ""
        if meaning.theirs != name:
            named.append(f"{name} from {shown(meaning.theirs)}{how}")

    if named:
        yield f"Read: {', '.join(named)}."

    if matching.unused:
        names = ", ".join(map(shown, matching.unused))
        setting = Option("axis", ["NAME"])
        yield f"Not read: {names}. {setting} says that one is a setting."


def _trainings(rows: Sequence[ImportedRow]) -> tuple[list[str], str]:
    """Return how many rows train to a target in words, and the only target of all."""
    trained = [r.values for r in rows if r.values.get("samples_to_target")]
    named_so = {tuple(map(values.get, UNNAMED_TARGET)) for values in trained}
    target, named = "", ""

    targets = sorted(named_so, key=str)
    if len(targets) == 1 and None not in targets[0]:
        target = _in_words(targets[0])
        named = f": {Target.parse(target)}"
    elif several := [
        _in_words(target_cells) for target_cells in targets if None not in target_cells
    ]:
        listed = ", ".join(str(Target.parse(target_words)) for target_words in several)
        named = f": {listed}. Ask for one of them with {Option('target')}"

    alone = sum(values["kind"] == "convergence" for values in trained)
    untimed = f", {alone:,} without its time" if alone else ""
    count = counted(len(trained), "row")
    sentence = f"{count} tell how long training takes to a target{untimed}{named}."
    return [sentence] if trained else [], target


def _on_one_node(rows: Sequence[ImportedRow]) -> Iterator[str]:
    several = any(row.values["world_size"] > 1 for row in rows)
    if several and all(row.values["num_nodes"] == 1 for row in rows):
        yield (
            "No row is on several nodes. What connects them narrows answers for more "
            f"than one: say {Option('between_nodes', '200Gbit/s')} with the question."
        )


def _in_words(target: tuple[Any, ...]) -> str:
    metric, mode, value = target
    return f"{metric} {'>=' if mode == MetricMode.MAX else '<='} {value!r}"


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

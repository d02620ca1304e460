"""Import a foreign table of measurements as a run.

Rows that ``scalelab export`` wrote, one per attempt, are read back as they are. Equal
trials of several runs are kept apart, by other identities.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option, shown
from scalelab.inputs.target import MetricMode, Target
from scalelab.reading.reading import Reading
from scalelab.reading.tables.completing import complete
from scalelab.reading.tables.curves import Curves, ImportedRow
from scalelab.reading.tables.doubt import doubt
from scalelab.reading.tables.file import (
    ForeignTable,
    ImportArguments,
    TableRow,
    lines_listed,
    read_table,
)
from scalelab.reading.tables.match import Matching, by_goal, match, melted
from scalelab.reading.tables.names import LENGTHS, SPEEDS, Meaning
from scalelab.reading.tables.prices import TablePrices
from scalelab.reading.tables.values import (
    decimal_sign,
    failure,
    parse,
    parse_cell,
    parse_option,
    remarks_out_of_memory,
)
from scalelab.records.columns import (
    COLUMNS_BY_NAME,
    CURVE_COLUMNS,
    OPTION_PREFIX,
    SCHEMA_VERSION,
)
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
            code="table_refused",
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
                f"{row.cells['trial_id']} stands in line {first}, too. Remove one.",
                code="attempt_twice",
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
                    f"{shown(row.cells[name])} {error}. Export the run again.",
                    code="bad_cell",
                ) from error


def _checked(table: ForeignTable, row: TableRow, values: dict[str, Any]) -> Any:
    try:
        return check_types(check_row(values))
    except ValueError as error:
        raise SpecError(
            f"{table.path}, line {row.line}: {error}. Export the run again.",
            code="bad_cell",
        ) from error


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
# What the target is called where the table does not name it
UNNAMED_TARGET = {
    "target_metric": "target_reached",
    "metric_mode": "max",
    "target_value": 1.0,
}
_MEASURED = (*SPEEDS, *LENGTHS, "time_to_target_s", "gpu_memory_peak_bytes")
_CONFIGURATION = (
    "workload dataset parallelism device_type device_name num_nodes gpus_per_node "
    "world_size data_parallel_size placement threads_per_rank local_batch_size "
    "gradient_accumulation_steps global_batch_size normalization_batch_size "
    "sequence_length precision optimizer lr_rule learning_rate schedule seed"
).split()


def read(
    table: ForeignTable, matching: Matching, asked: ImportArguments, run: str
) -> Reading[list[ImportedRow]]:
    """Return the rows that measured something, with what is said of the others.

    A row without a time is left out, unless a cell says that the device ran out of
    memory or that the trial failed.
    """
    _refuse_gaps(table, matching)
    reader = _Reader(table, matching, asked)
    found = [*zip(table.rows, reader.values(run), strict=True)]

    measured = [(row, values) for row, values in found if values is not None]
    if not measured:
        speeds = map(matching.theirs.get, (*SPEEDS, *LENGTHS, "time_to_target_s"))
        raise SpecError(
            f"{table.path}: no row has a step time or a throughput. Fill the column "
            f"{shown(next(filter(None, speeds)))}, or name another one with "
            f"{Option('column')}.",
            code="no_times",
        )

    _tell_apart(table, measured)
    rows, evidence = _bounded(
        [ImportedRow(row.line, row.cells, values) for row, values in measured]
    )

    evidence += reader.evidence
    if left_out := [row.line for row, values in found if values is None]:
        have = "has" if len(left_out) == 1 else "have"
        evidence.append(
            f"Left out: {counted(len(left_out), 'row')} that {have} neither a step "
            f"time nor a throughput ({lines_listed(left_out)})."
        )

    evidence += _failures(rows)
    return Reading(value=rows, evidence=tuple(evidence))


def _tell_apart(
    table: ForeignTable, measured: Sequence[tuple[TableRow, dict[str, Any]]]
) -> None:
    """Give equal configurations a repeat each, and all rows the name of a trial."""
    repeats: Counter[str] = Counter()
    lines: dict[str, int] = {}
    for row, values in measured:
        configuration = _ENCODER.encode(
            {
                name: values.get(name)
                for name in (*_CONFIGURATION, *values)
                if name in _CONFIGURATION or name.startswith(OPTION_PREFIX)
            }
        )

        values.setdefault("repeat", repeats[configuration])
        repeats[configuration] += 1
        trial = f"{values['repeat']}{configuration}"
        values["trial_id"] = hashlib.sha256(trial.encode()).hexdigest()[:12]

        if (first := lines.setdefault(values["trial_id"], row.line)) != row.line:
            raise SpecError(
                f"{table.path}, line {row.line}: the same configuration and "
                f"repeat={values['repeat']} stand in line {first}. Number the repeats "
                "differently, or remove the column: then they are counted.",
                code="row_twice",
            )


def _failures(rows: Sequence[ImportedRow]) -> Iterator[str]:
    failed = Counter(
        row.values["outcome"]
        for row in rows
        if row.values["outcome"] != Outcome.COMPLETED
        and row.values.get("step_time_s") is None
    )
    for outcome, count in failed.items():
        words = str(outcome).replace("_", " ")
        yield f"{counted(count, 'row')} without a time: {words}."


class _Reader:
    """Reads the cells of each row, and fills in what follows from them."""

    def __init__(
        self, table: ForeignTable, matching: Matching, asked: ImportArguments
    ) -> None:
        self._table = table
        self._matching = matching
        self._fixed = {
            name: _constant(name, str(value)) for name, value in asked.constant.items()
        }
        self._tokens = asked.tokens_per_sample

        if self._tokens is not None:
            self._check_tokens(self._fixed)
            self._fixed["sequence_length"] = self._tokens

        self._decimal, self.evidence = asked.decimal or ".", list[str]()
        if asked.decimal is None:
            self._decimal, because = decimal_sign(table, matching.numbers)
            if self._decimal == "," and because:
                self.evidence = [f"Read commas as decimal signs: {because}."]

    def values(self, run: str) -> Iterator[dict[str, Any] | None]:
        """Yield the values of each row; None where it measured nothing."""
        options = {
            name: parse_option([row.cells[theirs] for row in self._table.rows])
            for name, theirs in self._matching.options.items()
        }
        base = {
            "schema_version": SCHEMA_VERSION,
            "run": run,
            "attempt": 1,
            "kind": "imported",
            "emulated": False,
            "outcome": str(Outcome.COMPLETED),
            "workload": self._table.path.stem,
            "validity": [],
            **self._fixed,
        }
        for index, row in enumerate(self._table.rows):
            measured = self._measured(row)
            chosen = {name: column[index] for name, column in options.items()}
            yield measured and self._completed(row, {**base, **chosen, **measured})

    def _completed(self, row: TableRow, values: dict[str, Any]) -> dict[str, Any]:
        try:
            self._check_tokens(values)
            values = complete(values, self._matching.columns)
        except SpecError as error:
            raise SpecError(
                f"{self._table.path}, line {row.line}: {error}", code=error.code
            ) from error

        has_missed = values["outcome"] == Outcome.TARGET_NOT_REACHED
        if values.get("samples_to_target") or has_missed:
            named = {} if values.get("target_metric") else UNNAMED_TARGET
            values |= {"reached_target": not has_missed, **named}

        return values

    def _measured(self, row: TableRow) -> dict[str, Any] | None:
        # None where the cells say neither time nor failure
        values: dict[str, Any] = {}
        outcome = None
        for name, meaning in self._matching.columns.items():
            text = row.cells[meaning.theirs]
            if name in _MEASURED and (failed := failure(text)):
                outcome = failed
            elif (value := self._cell(row.line, meaning, text)) is not None:
                values[name] = value

        has_ended = values.get("outcome", Outcome.COMPLETED) != Outcome.COMPLETED
        if outcome is None:
            known = {*values} & {*SPEEDS, *LENGTHS}
            if "time_to_target_s" in values:
                known |= {*self._fixed} & {*LENGTHS}
            if has_ended or known:
                return values
            if not any(map(remarks_out_of_memory, row.cells.values())):
                return None
            outcome = str(Outcome.OUT_OF_MEMORY)

        empty = LENGTHS if outcome == Outcome.TARGET_NOT_REACHED else _MEASURED
        return {**values, **dict.fromkeys(empty), "outcome": outcome}

    def _cell(self, line: int, meaning: Meaning, text: str) -> Any:
        try:
            return parse_cell(meaning, text, self._decimal)
        except ValueError as error:
            name = meaning.column
            ours = "" if meaning.theirs == name else f" ({name})"
            unit = COLUMNS_BY_NAME[name].meaning.rstrip(".")
            raise SpecError(
                f"{self._table.path}, line {line}, column {shown(meaning.theirs)}{ours}"
                f": {shown(text)} {error} ({unit}). Correct the cell or remove the "
                "row.",
                code="bad_cell",
            ) from error

    def _check_tokens(self, values: Mapping[str, Any]) -> None:
        length = values.get("sequence_length")
        if self._tokens is not None and length not in (None, self._tokens):
            raise SpecError(
                f"{Option('tokens_per_sample', self._tokens)} contradicts "
                f"sequence_length={length}: both are the tokens of one sample.",
                f"Leave {Option('tokens_per_sample')} out, or {Option('ignore')} the "
                "column if it is something else.",
                code="tokens_contradict",
            )


def _refuse_gaps(table: ForeignTable, matching: Matching) -> None:
    """Refuse empty cells that may be merged ones: a value may hold for those below.

    A setting is not used in rows where its cell is empty, unless no value of it stands
    in two filled cells that follow each other.
    """
    places = [matching.theirs.get(name, "") for name in ("world_size", "num_nodes")]
    placed = [row for row in table.rows if any(map(row.cells.get, places))]
    for ours, name in matching.theirs.items():
        is_needed = ours in CURVE_COLUMNS
        if not is_needed and ours not in matching.options:
            continue

        # what tells the samples of a batch alone has no device
        rows = placed if ours in ("device_name", "device_type") else table.rows
        empty = [row.line for row in rows if not row.cells[name]]

        filled = [row for row in rows if row.cells[name]]
        if not empty or not filled:
            continue

        values = [row.cells[name] for row in filled]
        never_again = all(one != other for one, other in pairwise(values))
        if is_needed or (never_again and empty[-1] > filled[0].line):
            raise SpecError(
                f"{table.path}: the column {shown(name)}, which tells curves apart, is "
                f"empty in {lines_listed(empty)}. Write its value in every row: that "
                "of a merged cell in all of its rows, and n/a where there is none; or "
                f"leave the column out ({Option('ignore', [name])}).",
                code="cells_missing",
            )


def _bounded(rows: Sequence[ImportedRow]) -> tuple[list[ImportedRow], list[str]]:
    """Give runs that missed their target a length, and say so.

    Where the table does not say how long they ran, that is as long as the longest run
    of the workload that reached a target.
    """
    longest: dict[Any, int] = {}
    for values in (row.values for row in rows):
        known = values.get("samples_to_target") or 0
        longest[values["workload"]] = max(known, longest.get(values["workload"], 0))

    bounded = [
        replace(row, values={**row.values, "num_samples": samples})
        if row.values.get("reached_target") is False
        and "num_samples" not in row.values
        and (samples := longest[row.values["workload"]])
        else row
        for row in rows
    ]

    count = sum(row is not other for row, other in zip(rows, bounded, strict=True))
    limits = (
        f"{counted(count, 'row')} did not reach the target. How long they ran is not "
        "said and taken to be as long as the longest run of the workload that did; "
        f"{Option('constant', 'N', key='num_samples')} says otherwise."
    )
    return bounded, [limits] if count else []


def _constant(name: str, text: str) -> Any:
    if name.startswith(OPTION_PREFIX):
        return parse_option([text])[0]
    try:
        value = parse(name, text)
    except ValueError as error:
        raise SpecError(f"{name}={shown(text)} {error}.", code="bad_value") from error
    if value is None:
        raise SpecError(
            f"{name}={shown(text)} is empty. Give a value or leave it out.",
            code="empty_value",
        )
    return value

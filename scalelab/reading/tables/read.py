"""Read the rows of a foreign table, once it is known which column is which."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import shown
from scalelab.inputs.wording import Option
from scalelab.reading.reading import Reading
from scalelab.reading.tables.completing import complete
from scalelab.reading.tables.curves import ImportedRow
from scalelab.reading.tables.file import (
    ForeignTable,
    ImportArguments,
    TableRow,
    lines_listed,
)
from scalelab.reading.tables.match import Matching
from scalelab.reading.tables.names import LENGTHS, SPEEDS, Meaning
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
            f"{Option('column')}."
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
                "differently, or remove the column: then they are counted."
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
            raise SpecError(f"{self._table.path}, line {row.line}: {error}") from error

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
                f": {shown(text)} {error} ({unit}). Correct the cell or remove the row."
            ) from error

    def _check_tokens(self, values: Mapping[str, Any]) -> None:
        length = values.get("sequence_length")
        if self._tokens is not None and length not in (None, self._tokens):
            raise SpecError(
                f"{Option('tokens_per_sample', self._tokens)} contradicts "
                f"sequence_length={length}: both are the tokens of one sample.",
                f"Leave {Option('tokens_per_sample')} out, or {Option('ignore')} the "
                "column if it is something else.",
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
                f"leave the column out ({Option('ignore', [name])})."
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
        raise SpecError(f"{name}={shown(text)} {error}.") from error
    if value is None:
        raise SpecError(f"{name}={shown(text)} is empty. Give a value or leave it out.")
    return value

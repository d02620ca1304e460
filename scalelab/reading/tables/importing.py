"""Import a foreign table of measurements as a run."""

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
from scalelab.inputs.problems import shown
from scalelab.inputs.target import MetricMode, Target
from scalelab.inputs.wording import Option
from scalelab.reading.tables.completing import complete
from scalelab.reading.tables.curves import Curves, ImportedRow
from scalelab.reading.tables.doubt import doubt
from scalelab.reading.tables.exported import exported_rows, is_exported
from scalelab.reading.tables.file import (
    ForeignTable,
    ImportArguments,
    TableRow,
    lines_listed,
    read_table,
)
from scalelab.reading.tables.match import Matching, match
from scalelab.reading.tables.names import LENGTHS, SPEEDS, Reading
from scalelab.reading.tables.prices import TablePrices
from scalelab.reading.tables.reshape import by_goal, melted
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
from scalelab.records.store import RunStore

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
# What the target is called where the table does not name it
_UNNAMED = {
    "target_metric": "target_reached",
    "metric_mode": "max",
    "target_value": 1.0,
}
_PLACES = {"table", "directory"}
_MEASURED = (*SPEEDS, *LENGTHS, "time_to_target_s", "gpu_memory_peak_bytes")
_CONFIGURATION = (
    "workload dataset parallelism device_type device_name num_nodes gpus_per_node "
    "world_size data_parallel_size placement threads_per_rank local_batch_size "
    "gradient_accumulation_steps global_batch_size normalization_batch_size "
    "sequence_length precision optimizer lr_rule learning_rate schedule seed"
).split()


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
    _refuse_gaps(foreign, matching)
    reader = _Reader(foreign, matching, asked)
    rows, missed = _bounded(list(reader.rows(run_directory.absolute().name)))
    if not rows:
        told = map(matching.theirs.get, (*SPEEDS, *LENGTHS, "time_to_target_s"))
        raise SpecError(
            f"{table}: no row has a step time or a throughput. Fill the column "
            f"{shown(next(filter(None, told)))}, or name another one with "
            f"{Option('column')}."
        )
    curves = Curves.of(rows)
    placed = [row for row in rows if "world_size" in row.values]
    refused, said = doubt(matching, curves, placed, asked.constant)
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
        "constants": {name: str(said) for name, said in asked.constant.items()},
        "unused": list(matching.unused),
        **({"target": target} if target else {}),
        **({"prices": list(prices.entries)} if prices.entries else {}),
        "told": [
            *([curves.sentence] if curves.rows else []),
            *trainings,
            *missed,
            *_how_read(matching),
            *prices.told,
            *foreign.passed_over,
            *reader.sentences(rows),
            *_on_one_node(placed),
        ],
        "doubts": [*refused, *said],
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


class _Reader:
    def __init__(
        self, table: ForeignTable, matching: Matching, asked: ImportArguments
    ) -> None:
        self._table = table
        self._matching = matching
        self._fixed = {
            name: _constant(name, str(said)) for name, said in asked.constant.items()
        }
        self._tokens = asked.tokens_per_sample
        if self._tokens is not None:
            self._check_tokens(self._fixed)
            self._fixed["sequence_length"] = self._tokens
        self._without_time: list[int] = []
        kinds = {ours: COLUMNS_BY_NAME[ours].kind for ours in matching.columns}
        numbers = {
            reading.theirs: kinds[ours] == "integer"
            and reading.factor == 1
            and ours not in LENGTHS
            for ours, reading in matching.columns.items()
            if kinds[ours] in ("integer", "number")
        }
        self._decimal, self._because = (
            (asked.decimal, "") if asked.decimal else decimal_sign(table, numbers)
        )

    def rows(self, run: str) -> Iterator[ImportedRow]:
        options = {
            name: parse_option([each.cells[theirs] for each in self._table.rows])
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
        repeats: Counter[str] = Counter()
        lines: dict[str, int] = {}
        for index, each in enumerate(self._table.rows):
            measured = self._measured(each)
            if measured is None:
                self._without_time.append(each.line)
                continue
            chosen = {name: column[index] for name, column in options.items()}
            values = {**base, **chosen, **measured}
            try:
                self._check_tokens(values)
                values = complete(values, self._matching.columns)
            except SpecError as error:
                raise SpecError(
                    f"{self._table.path}, line {each.line}: {error}"
                ) from error
            configuration = _ENCODER.encode(
                {
                    name: values.get(name)
                    for name in (*_CONFIGURATION, *values)
                    if name in _CONFIGURATION or name.startswith(OPTION_PREFIX)
                }
            )
            values.setdefault("repeat", repeats[configuration])
            repeats[configuration] += 1
            has_missed = values["outcome"] == Outcome.TARGET_NOT_REACHED
            if values.get("samples_to_target") or has_missed:
                named = {} if values.get("target_metric") else _UNNAMED
                values |= {"reached_target": not has_missed, **named}
            trial = f"{values['repeat']}{configuration}"
            values["trial_id"] = hashlib.sha256(trial.encode()).hexdigest()[:12]
            if (first := lines.setdefault(values["trial_id"], each.line)) != each.line:
                raise SpecError(
                    f"{self._table.path}, line {each.line}: the same configuration and "
                    f"repeat={values['repeat']} stand in line {first}. Number the "
                    "repeats differently, or remove the column: then they are counted."
                )
            yield ImportedRow(each.line, each.cells, values)

    def sentences(self, rows: Sequence[ImportedRow]) -> Iterator[str]:
        if self._decimal == "," and self._because:
            yield f"Read commas as decimal signs: {self._because}."
        if lines := self._without_time:
            have = "has" if len(lines) == 1 else "have"
            yield (
                f"Left out: {counted(len(lines), 'row')} that {have} neither a step "
                f"time nor a throughput ({lines_listed(lines)})."
            )
        failed = Counter(
            row.values["outcome"]
            for row in rows
            if row.values["outcome"] != Outcome.COMPLETED
            and row.values.get("step_time_s") is None
        )
        for outcome, count in failed.items():
            words = str(outcome).replace("_", " ")
            yield f"{counted(count, 'row')} without a time: {words}."

    def _measured(self, row: TableRow) -> dict[str, Any] | None:
        # None where the cells say neither time nor failure
        values: dict[str, Any] = {}
        outcome = None
        for name, reading in self._matching.columns.items():
            text = row.cells[reading.theirs]
            if name in _MEASURED and (failed := failure(text)):
                outcome = failed
            elif (value := self._cell(row.line, reading, text)) is not None:
                values[name] = value
        has_ended = values.get("outcome", Outcome.COMPLETED) != Outcome.COMPLETED
        if outcome is None:
            told = {*values} & {*SPEEDS, *LENGTHS}
            if "time_to_target_s" in values:
                told |= {*self._fixed} & {*LENGTHS}
            if has_ended or told:
                return values
            if not any(map(remarks_out_of_memory, row.cells.values())):
                return None
            outcome = str(Outcome.OUT_OF_MEMORY)
        empty = LENGTHS if outcome == Outcome.TARGET_NOT_REACHED else _MEASURED
        return {**values, **dict.fromkeys(empty), "outcome": outcome}

    def _cell(self, line: int, reading: Reading, text: str) -> Any:
        try:
            return parse_cell(reading, text, self._decimal)
        except ValueError as error:
            name = reading.column
            ours = "" if reading.theirs == name else f" ({name})"
            unit = COLUMNS_BY_NAME[name].meaning.rstrip(".")
            raise SpecError(
                f"{self._table.path}, line {line}, column {shown(reading.theirs)}{ours}"
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


def _how_read(matching: Matching) -> Iterator[str]:
    named = []
    for name, reading in matching.columns.items():
        said = [
            words
            for words, is_so in (
                ("steps per second", reading.is_step_rate),
                ("of one device", reading.is_per_device),
                ("tokens / sequence_length", reading.is_in_tokens),
                (f"in {reading.unit}", reading.factor != 1),
            )
            if is_so
        ]
        how = f" ({', '.join(said)})" if said else ""
        if reading.theirs != name:
            named.append(f"{name} from {shown(reading.theirs)}{how}")
    if named:
        yield f"Read: {', '.join(named)}."
    if matching.unused:
        names = ", ".join(map(shown, matching.unused))
        setting = Option("axis", ["NAME"])
        yield f"Not read: {names}. {setting} says that one is a setting."


def _trainings(rows: Sequence[ImportedRow]) -> tuple[list[str], str]:
    """Return how many rows train to a target in words, and the only target of all."""
    trained = [r.values for r in rows if r.values.get("samples_to_target")]
    named_so = {tuple(map(values.get, _UNNAMED)) for values in trained}
    target, named = "", ""
    targets = sorted(named_so, key=str)
    if len(targets) == 1 and None not in targets[0]:
        target = _in_words(targets[0])
        named = f": {Target.parse(target)}"
    elif several := [_in_words(each) for each in targets if None not in each]:
        listed = ", ".join(str(Target.parse(each)) for each in several)
        named = f": {listed}. Ask for one of them with {Option('target')}"
    alone = sum(values["kind"] == "convergence" for values in trained)
    untimed = f", {alone:,} without its time" if alone else ""
    count = counted(len(trained), "row")
    said = f"{count} tell how long training takes to a target{untimed}{named}."
    return [said] if trained else [], target


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
    said = (
        f"{counted(count, 'row')} did not reach the target. How long they ran is not "
        "said and taken to be as long as the longest run of the workload that did; "
        f"{Option('constant', 'N', key='num_samples')} says otherwise."
    )
    return bounded, [said] if count else []


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

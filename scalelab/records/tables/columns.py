"""Match the columns of a foreign table with those of the observations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.records.columns import CURVE_COLUMNS, OPTION_PREFIX
from scalelab.records.tables import wide
from scalelab.records.tables.file import ForeignTable
from scalelab.records.tables.names import (
    AMBIGUOUS_BATCHES,
    COUNT_OR_NAME,
    SETTABLE,
    Reading,
    is_axis,
    known_names,
    plain,
    reading_as,
    reading_of,
)
from scalelab.records.tables.numerals import is_missing
from scalelab.records.tables.options import ImportOptions
from scalelab.records.tables.words import listed, shown

_REQUIRED = (
    (("world_size",), ("num_nodes", "gpus_per_node")),
    (("num_nodes",), ("gpus_per_node",)),
    (("local_batch_size",), ("global_batch_size",)),
    (("step_time_s",), ("throughput_samples_per_s",)),
)
"""Each line: alternatives, one of which must be there, each a set of columns."""
_WHOLES = {
    "epoch": "an epoch",
    "to_train": "a whole training",
    "total_time": "a whole training",
    "wall": "a whole training",
    "minutes": "a whole training",
}
_OF_A_STEP = {
    "an epoch": "epoch time * global_batch_size / samples per epoch",
    "a whole training": "training time / number of steps",
}
_WHOLE = re.compile("|".join(_WHOLES))
_SPREAD = re.compile(r"(std|stdev|stddev|var|min|max|p\d+)_.*")
_STEP = re.compile(
    r"([a-z]+_)*(step|iter|iteration)(?P<what>_time|_duration)?"
    r"(_(?P<unit>s|ms|us))?"
)
_COUNT = re.compile(r"[-\d.,' ]+( ?(gpus?|tpus?|devices?|chips?))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Matching:
    """The matching of a table's columns with those of the observations."""

    columns: Mapping[str, str]
    readings: Mapping[str, Reading]
    options: Mapping[str, str]
    unused: Sequence[str]

    @property
    def throughput(self) -> Reading | None:
        """What the throughput says; None where none is read."""
        return self.readings.get("throughput_samples_per_s")


class _Claims:
    """The columns that have been given a meaning so far."""

    def __init__(self, table: ForeignTable, asked: ImportOptions) -> None:
        self._table = table
        self._constants = set(asked.constant)
        self.columns: dict[str, str] = {}
        self.readings: dict[str, Reading] = {}
        self.options: dict[str, str] = {}

    def add(self, reading: Reading, theirs: str) -> None:
        """Take a column as ours; a second one of the same meaning is refused."""
        self._refuse_second(reading.column, theirs, self.columns)
        self.columns[reading.column] = theirs
        self.readings[reading.column] = reading

    def add_option(self, name: str, theirs: str) -> None:
        """Take a column as a further axis."""
        self._refuse_second(name, theirs, self.options)
        self.options[name] = theirs

    def _refuse_second(
        self, name: str, theirs: str, claimed: Mapping[str, str]
    ) -> None:
        if name not in claimed and name not in self._constants:
            return
        other = claimed.get(name)
        where = f"the column {shown(other)}" if other else "a value for the whole table"
        raise SpecError(
            f"{self._table.path}: {name} is given by the column {shown(theirs)} and by "
            f"{where}. Say which it is (--column {name}=THEIRS), or leave one out "
            f"(--ignore {_quoted(theirs)})."
        )


def match_columns(table: ForeignTable, asked: ImportOptions) -> Matching:
    """Find the columns by what is said of them, by their names, and by aliases.

    A column of another name that is neither asked for as an axis nor a well-known
    setting is left unused.
    """
    _check_names(table, asked)
    claims = _Claims(table, asked)
    mapped = {plain_reading(ours) for ours in asked.column}
    derived: list[tuple[Reading, str]] = []
    unused: list[str] = []
    for theirs in table.names:
        ours = [name for name, column in asked.column.items() if column == theirs]
        for name in ours:
            _claim_mapped(claims, name, theirs)
        if ours or theirs in asked.ignore:
            continue
        reading = reading_of(theirs) or _by_content(table, theirs)
        if _is_option(theirs, reading, asked):
            name = OPTION_PREFIX + theirs.removeprefix(OPTION_PREFIX)
            claims.add_option(name, theirs)
        elif reading is None or reading.column in mapped:
            unused.append(theirs)
        elif reading.is_derived:
            derived.append((reading, theirs))
        else:
            claims.add(reading, theirs)
    in_tokens = [each for each in derived if each[0].column == "global_batch_size"]
    speeds = [each for each in derived if each not in in_tokens]
    unused += _claim_derived(claims, in_tokens, {"global_batch_size"})
    unused += _claim_derived(
        claims, speeds, {"step_time_s", "throughput_samples_per_s"}
    )
    _check_required(table, {*claims.columns, *asked.constant}, unused)
    readings = _as_asked(table, claims.readings, asked)
    return Matching(claims.columns, readings, claims.options, tuple(unused))


def plain_reading(ours: str) -> str:
    """Return the column of the observations that a name of the user's stands for."""
    reading = reading_of(ours)
    return reading.column if reading else ours


def _is_option(theirs: str, reading: Reading | None, asked: ImportOptions) -> bool:
    if reading is None:
        return theirs in asked.axis or is_axis(theirs)
    return theirs in asked.axis and reading.column not in CURVE_COLUMNS


def _claim_mapped(claims: _Claims, name: str, theirs: str) -> None:
    reading = reading_as(name, theirs)
    if reading is None:
        claims.add_option(name, theirs)
    else:
        claims.add(reading, theirs)


def _claim_derived(
    claims: _Claims, derived: Sequence[tuple[Reading, str]], direct: set[str]
) -> Sequence[str]:
    """Read the most direct of columns that tell the same; return the others.

    None of them is read where a column tells it directly.
    """
    if not derived or direct & {*claims.columns}:
        return [theirs for _, theirs in derived]
    ranked = sorted(derived, key=lambda each: (each[0].is_in_tokens, _rank(each[0])))
    claims.add(*ranked[0])
    return [theirs for _, theirs in ranked[1:]]


def _rank(reading: Reading) -> int:
    return 0 if reading.is_step_rate else 1 + reading.is_per_device


def _by_content(table: ForeignTable, theirs: str) -> Reading | None:
    """Return what a column says whose name may mean a number or the name of devices."""
    if plain(theirs) not in COUNT_OR_NAME:
        return None
    cells = [row.cells[theirs] for row in table.rows]
    counts = sum(bool(_COUNT.fullmatch(cell)) for cell in cells)
    missing = sum(map(is_missing, cells))
    filled = len(cells) - missing
    is_count = 2 * counts > filled if filled else plain(theirs).endswith("s")
    return Reading("world_size" if is_count else "device_name")


def _as_asked(
    table: ForeignTable, readings: Mapping[str, Reading], asked: ImportOptions
) -> Mapping[str, Reading]:
    """Return the readings with the throughput as the user says it is."""
    said = [
        f"--{name.replace('_', '-')}"
        for name in ("per_device", "tokens_per_sample")
        if getattr(asked, name)
    ]
    found = readings.get("throughput_samples_per_s")
    if not said:
        return readings
    if found is None:
        raise SpecError(
            f"{table.path}: {' and '.join(said)} is said of a throughput, but none is "
            f"read from its columns, {listed(table.names)}. Leave the option out, or "
            "name the column (--column throughput_samples_per_s=THEIRS)."
        )
    changed = Reading(
        found.column,
        is_per_device=found.is_per_device or asked.per_device,
        is_in_tokens=found.is_in_tokens or asked.tokens_per_sample is not None,
    )
    return {**readings, found.column: changed}


def _check_names(table: ForeignTable, asked: ImportOptions) -> None:
    for name in (*asked.column, *asked.constant):
        is_unit = name in asked.column and reading_of(name) is not None
        if name not in SETTABLE and not name.startswith(OPTION_PREFIX) and not is_unit:
            raise SpecError(
                f"{name!r} is no column that a table can fill. "
                f"{nearest(name, SETTABLE)}Columns: {', '.join(SETTABLE)}, "
                f"{OPTION_PREFIX}<axis>."
            )
    for name, theirs in asked.column.items():
        _check_is_there(table, theirs, f"which is to be {name}")
    for theirs in asked.axis:
        _check_is_there(table, theirs, "which is to be an axis")
    for theirs in asked.ignore:
        _check_is_there(table, theirs, "which is to be ignored")


def _check_is_there(table: ForeignTable, theirs: str, purpose: str) -> None:
    if theirs not in table.names:
        raise SpecError(
            f"{table.path} has no column {shown(theirs)}, {purpose}. "
            f"{nearest(theirs, table.names)}Its columns: {listed(table.names)}."
        )


def _check_required(table: ForeignTable, given: set[str], others: list[str]) -> None:
    missing = [
        alternatives
        for alternatives in _REQUIRED
        if not any(given.issuperset(names) for names in alternatives)
    ]
    if not missing:
        return
    needs = "; ".join(
        " or ".join(" and ".join(names) for names in alternatives)
        for alternatives in missing
    )
    example = missing[0][0][0]
    wanted = {name for each in missing for names in each for name in names} - given
    raise SpecError(
        f"{table.path} lacks columns that a measurement needs: {needs}."
        f"{''.join(_hints(table, wanted, others))} Map a "
        f"column (--column {example}=THEIRS), or give a value for the whole table "
        f"(--constant {example}=...). "
        f"Its columns: {listed(table.names)}."
    )


def _hints(table: ForeignTable, wanted: set[str], others: list[str]) -> Iterable[str]:
    wide_hint = wide.hint(table, wanted, others)
    for theirs in others:
        if "local_batch_size" in wanted and plain(theirs) in AMBIGUOUS_BATCHES:
            yield (
                f" {shown(theirs)} may be the batch of one device (--column "
                f"local_batch_size={_quoted(theirs)}) or of all (--column "
                f"global_batch_size={_quoted(theirs)})."
            )
        elif "step_time_s" in wanted and (whole := _WHOLE.search(plain(theirs))):
            what = _WHOLES[whole[0]]
            yield (
                f" {shown(theirs)} seems to be the time of {what}; needed is that of a "
                f"step ({_OF_A_STEP[what]}), or samples per second."
            )
        elif not wide_hint and (ours := _lookalike(theirs, wanted)):
            yield f" {shown(theirs)} looks like {ours}."
    if wanted & {"num_nodes", "gpus_per_node"}:
        yield (
            " If all nodes are alike and filled, --constant gpus_per_node=8 says how "
            "many devices one has."
        )
    yield wide_hint
    if "step_time_s" in wanted:
        yield (
            " The time of a step is in seconds, unless its name says otherwise "
            "(step_time_ms)."
        )


def _lookalike(theirs: str, wanted: set[str]) -> str | None:
    if _SPREAD.fullmatch(plain(theirs)):
        return None
    step = _STEP.fullmatch(plain(theirs))
    if step and (step["what"] or step["unit"]) and "step_time_s" in wanted:
        return f"step_time_{step['unit'] or 's'}"
    names = {
        name: reading.column
        for name, reading in known_names().items()
        if reading.column in wanted
    }
    close = difflib.get_close_matches(plain(theirs), names, n=1, cutoff=0.75)
    return names[close[0]] if close else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question for the name that was perhaps meant; empty if none is near."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


def _quoted(name: str) -> str:
    """Return a name as a shell takes it for one word."""
    return name if re.fullmatch(r"[\w.+-]+", name) else f"'{name}'"

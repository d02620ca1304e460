"""Match the columns of a foreign table, wide ones too, with our own."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scalelab.errors import SpecError
from scalelab.inputs.problems import did_you_mean, shown
from scalelab.inputs.wording import Option
from scalelab.reading.tables.file import ForeignTable, ImportArguments, TableRow, listed
from scalelab.reading.tables.names import (
    AMBIGUOUS_BATCHES,
    COUNT_OR_NAME,
    EPOCHS,
    LENGTHS,
    OF_DEVICES,
    SETTABLE,
    SPEEDS,
    Reading,
    is_axis,
    is_known,
    is_measured,
    known_names,
    plain,
    reading_as,
    reading_of,
)
from scalelab.reading.tables.values import failure, is_missing
from scalelab.records.columns import COLUMNS_BY_NAME, CURVE_COLUMNS, OPTION_PREFIX

# Each line: alternatives, one of which must be there, each a set of columns.
_REQUIRED: Sequence[Sequence[Sequence[str]]] = (
    (("world_size",), ("num_nodes", "gpus_per_node")),
    (("num_nodes",), ("gpus_per_node",)),
    (("local_batch_size",), ("global_batch_size",)),
    (("step_time_s",), ("throughput_samples_per_s",)),
)
_WHOLE = re.compile(
    "epoch|to_train|total_time|wall|minutes|train(ing)?_time(?!.*(step|iter|batch))"
)
_SPREAD = re.compile(r"(std|stdev|stddev|var|min|max|p\d+)_.*")
_COUNT_CELL = re.compile(r"[-\d.,' ]+( ?(gpus?|tpus?|devices?|chips?))?", re.IGNORECASE)
_COUNT_IN_NAME = re.compile(
    r"(?:(?<![a-z\d.])|(?<=gpu)|(?<=gpus)|(?<=tpu)|(?<![a-z])(?!p50|p9\d)[npx])"
    r"(\d+)(?![\d.])",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"([a-z]\w*?)(?:\s*[=:]\s*[^\s,;=:]+|-?\d+)(?:[\s,;]+(?![=:])|$)", re.IGNORECASE
)
_BEGINS_LIKE_A_NUMBER = re.compile(r"[+-]?[\d.]")
_LEAST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Matching:
    """The matching of a table's columns with those of the observations."""

    columns: Mapping[str, Reading]
    options: Mapping[str, str]
    unused: Sequence[str]

    @property
    def theirs(self) -> dict[str, str]:
        """Their column by ours, be it a column or an option."""
        found = {ours: reading.theirs for ours, reading in self.columns.items()}
        return {**found, **self.options}


def match_columns(table: ForeignTable, asked: ImportArguments) -> Matching:
    """Find the columns by what is said of them, by their names, and by aliases.

    A column of another name that is neither asked for as an axis nor a well-known
    setting is left unused.
    """
    _check_names(table, asked)
    columns: dict[str, Reading] = {}
    options: dict[str, str] = {}

    def claim(name: str, theirs: str, reading: Reading | None = None) -> None:
        if name in columns or name in options or name in asked.constant:
            other = columns[name].theirs if name in columns else options.get(name)
            where = f"the column {shown(other)}" if other else "a value for all rows"
            raise SpecError(
                f"{table.path}: {name} is given by the column {shown(theirs)} and by "
                f"{where}.",
                f"Say which it is ({Option('column', 'THEIRS', key=name)}), or leave "
                f"one out ({Option('ignore', [theirs])}).",
            )
        if reading is None:
            options[name] = theirs
        else:
            columns[name] = replace(reading, theirs=theirs)

    known = {ours: reading_of(ours) for ours in asked.column}
    mapped = {reading.column if reading else ours for ours, reading in known.items()}
    named = {r.column for r in map(reading_of, table.names) if r} | mapped
    told = named.union(asked.constant)
    tells_length = "time_to_target_s" in told or told.isdisjoint(SPEEDS)
    derived: list[tuple[Reading, str]] = []
    unused: list[str] = []
    for theirs in table.names:
        ours = [name for name, column in asked.column.items() if column == theirs]
        for name in ours:
            said = reading_as(name, theirs)
            claim(said.column if said else name, theirs, said)
        if ours or theirs in asked.ignore:
            continue
        reading = reading_of(theirs) or _by_content(table, theirs)
        if reading is None and tells_length:
            length = reading_of(f"{theirs} to target")
            reading = length if length and length.column in LENGTHS else None
        is_well_known = is_axis(theirs) or _lists_settings(table, theirs)
        is_setting = theirs in asked.axis or (reading is None and is_well_known)
        if is_setting and (reading is None or reading.column not in CURVE_COLUMNS):
            claim(OPTION_PREFIX + theirs.removeprefix(OPTION_PREFIX), theirs)
        elif reading is None or reading.column in mapped:
            unused.append(theirs)
        elif reading.is_derived:
            derived.append((reading, theirs))
        else:
            claim(reading.column, theirs, reading)
    # the most direct one of columns that tell the same is read
    for reading, theirs in sorted(derived, key=lambda each: each[0].directness):
        same = {*SPEEDS} if reading.column in SPEEDS else {reading.column}
        if same.isdisjoint(columns):
            claim(reading.column, theirs, reading)
        else:
            unused.append(theirs)
    _check_required(table, {*columns, *asked.constant}, unused)
    columns |= _of_epochs(table, columns, asked)
    columns |= _as_asked(table, columns, asked)
    return Matching(columns, options, tuple(unused))


def _by_content(table: ForeignTable, theirs: str) -> Reading | None:
    # the name may mean a number or the name of devices
    if plain(theirs) not in COUNT_OR_NAME:
        return None
    filled = _filled(table, theirs)
    counts = list(filter(_COUNT_CELL.fullmatch, filled))
    is_count = 2 * len(counts) > len(filled) if filled else theirs.endswith("s")
    return Reading("world_size" if is_count else "device_name")


def _filled(table: ForeignTable, name: str) -> list[str]:
    cells = (row.cells[name] for row in table.rows)
    return [cell for cell in cells if not is_missing(cell)]


def _as_asked(
    table: ForeignTable, columns: Mapping[str, Reading], asked: ImportArguments
) -> dict[str, Reading]:
    said = [
        f"--{name.replace('_', '-')}"
        for name in ("per_device", "tokens_per_sample")
        if getattr(asked, name)
    ]
    if not said:
        return {}
    name = "throughput_samples_per_s"
    found = columns.get(name)
    if found is None:
        raise SpecError(
            f"{table.path}: {' and '.join(said)} is said of a throughput, but none is "
            f"read from its columns, {listed(table.names)}.",
            "Leave the option out, or name the column "
            f"({Option('column', 'THEIRS', key=name)}).",
        )
    changed = replace(
        found,
        is_per_device=found.is_per_device or asked.per_device,
        is_in_tokens=found.is_in_tokens or asked.tokens_per_sample is not None,
    )
    return {name: changed}


def _of_epochs(
    table: ForeignTable, columns: Mapping[str, Reading], asked: ImportArguments
) -> dict[str, Reading]:
    name, samples = "samples_to_target", asked.samples_per_epoch
    length = columns.get(name)
    if length and length.unit == EPOCHS:
        if samples is None:
            raise SpecError(
                f"{table.path}: {shown(length.theirs)} counts epochs, and nothing says "
                "how many samples one has.",
                f"Say {Option('samples_per_epoch', 1281167)}.",
            )
        return {name: replace(length, factor=samples)}
    if samples is not None:
        raise SpecError(
            f"{table.path}: {Option('samples_per_epoch', samples)} is said, but no "
            "column is read as a number of epochs.",
            f"Leave it out, or say {Option('column', 'NAME', key='epochs_to_target')}.",
        )
    return {}


def _check_names(table: ForeignTable, asked: ImportArguments) -> None:
    for name in (*asked.column, *asked.constant):
        is_unit = name in asked.column and reading_of(name) is not None
        if name not in SETTABLE and not name.startswith(OPTION_PREFIX) and not is_unit:
            raise SpecError(
                f"{name!r} is no column that a table can fill. "
                f"{did_you_mean(SETTABLE, name)}Columns: {', '.join(SETTABLE)}, "
                f"{OPTION_PREFIX}<axis>."
            )
    for theirs, purpose in (
        *((theirs, f"be {name}") for name, theirs in asked.column.items()),
        *((theirs, "be an axis") for theirs in asked.axis),
        *((theirs, "be ignored") for theirs in asked.ignore),
    ):
        if theirs not in table.names:
            raise SpecError(
                f"{table.path} has no column {shown(theirs)}, which is to {purpose}. "
                f"{did_you_mean(table.names, theirs)}Its columns: "
                f"{listed(table.names)}."
            )


def _check_required(table: ForeignTable, given: set[str], others: list[str]) -> None:
    tells_length = not given.isdisjoint(LENGTHS)
    required = _REQUIRED
    if tells_length and "time_to_target_s" in given:
        given = {*given, "step_time_s"}
    elif tells_length and given.isdisjoint(OF_DEVICES):
        required = ((("global_batch_size",),),)
    missing = [
        alternatives
        for alternatives in required
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
    if "time_to_target_s" in given and not tells_length:
        wanted.add("samples_to_target")
    lacks = f"{table.path} lacks columns that a measurement needs: {needs}."
    raise SpecError(
        " ".join([lacks, *_hints(table, wanted, others)]),
        f"Map a column ({Option('column', 'THEIRS', key=example)}), or give a value "
        f"for the whole table ({Option('constant', '...', key=example)}). Its columns: "
        f"{listed(table.names)}.",
    )


def _hints(table: ForeignTable, wanted: set[str], others: list[str]) -> Iterator[str]:
    needs_speed = "step_time_s" in wanted
    known = {
        name: reading.column
        for name, reading in known_names().items()
        if reading.column in wanted
    }
    for theirs in others:
        name = plain(theirs)
        if "local_batch_size" in wanted and name in AMBIGUOUS_BATCHES:
            of_one = Option("column", theirs, key="local_batch_size")
            of_all = Option("column", theirs, key="global_batch_size")
            yield (
                f"{shown(theirs)} may be the batch of one device ({of_one}) or of all "
                f"({of_all})."
            )
        elif needs_speed and _WHOLE.search(name):
            yield (
                f"{shown(theirs)} seems to be the time of an epoch or a training; "
                "needed is that of a step (time / number of steps), or samples per "
                "second. If it is of a training to a target, "
                f"{Option('column', theirs, key='time_to_target_s')} says so."
            )
        elif not _SPREAD.fullmatch(name) and (
            close := difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        ):
            yield f"{shown(theirs)} looks like {known[close[0]]}."
    if "samples_to_target" in wanted:
        yield (
            "Beside the time of a training to its target, how long that is must be "
            "known: its samples, its steps, or its epochs with "
            f"{Option('samples_per_epoch', 1281167)}."
        )
    if wanted & {"num_nodes", "gpus_per_node"}:
        yield (
            "If all nodes are alike and filled, "
            f"{Option('constant', '8', key='gpus_per_node')} says how many devices one "
            "has."
        )
    if needs_speed:
        counts = list(_by_number(table, others))
        filled = [name for name in others if _is_of_numbers(table, name)]
        if len(counts) > 1 or len(filled) >= _LEAST_NAMED:
            names = counts if len(counts) > 1 else filled
            ours = "world_size" if len(counts) > 1 else "workload"
            melt = Option("melt", "throughput_samples_per_s", key=ours)
            yield (
                f"If the names of {shown(names[0])}, {shown(names[1])}, ... are values "
                f"of one thing, say of which, and what their cells hold: {melt}."
            )
        yield (
            "The time of a step is in seconds, unless its name says otherwise "
            "(step_time_ms)."
        )


def melted(table: ForeignTable, asked: ImportArguments) -> ForeignTable:
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
            f"Rename them, or leave {Option('melt')} out."
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


def _lists_settings(table: ForeignTable, name: str) -> bool:
    # ``tp2 zero1=8``: one is well known, and none has a column of its own
    cells = _filled(table, name)
    names = {each for cell in cells for each in _SETTING.findall(cell)}
    if any(_SETTING.sub("", cell) for cell in cells) or any(map(reading_of, names)):
        return False
    return any(map(is_axis, names))


def _by_number(table: ForeignTable, names: Sequence[str]) -> dict[str, str]:
    # columns of numbers with just one number in their name, and that
    found = {name: _COUNT_IN_NAME.findall(name) for name in names}
    return {
        name: numbers[0]
        for name, numbers in found.items()
        if len(numbers) == 1 and _is_of_numbers(table, name)
    }


def _is_of_numbers(table: ForeignTable, name: str) -> bool:
    if is_known(name) or is_axis(name) or is_measured(name):
        return False
    filled = _filled(table, name)
    return bool(filled) and all(
        _BEGINS_LIKE_A_NUMBER.match(cell) or failure(cell) for cell in filled
    )

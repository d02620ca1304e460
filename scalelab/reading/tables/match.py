"""Which columns of a foreign table are which of our own, and which are lacking.

Of wide tables, columns whose names hold values become rows.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scalelab.errors import SpecError
from scalelab.inputs.problems import Option, did_you_mean, shown
from scalelab.inputs.target import Target
from scalelab.reading.tables.file import ForeignTable, ImportArguments, TableRow, listed
from scalelab.reading.tables.names import (
    AMBIGUOUS_BATCHES,
    COUNT_OR_NAME,
    EPOCHS,
    LENGTHS,
    OF_DEVICES,
    SETTABLE,
    SPEEDS,
    Meaning,
    goal_of,
    is_axis,
    is_known,
    is_measured,
    known_names,
    meaning_as,
    meaning_of,
    plain,
    unit_in,
)
from scalelab.reading.tables.values import failure, is_missing
from scalelab.records.columns import (
    COLUMNS_BY_NAME,
    CURVE_COLUMNS,
    OPTION_PREFIX,
    TARGET_COLUMNS,
)

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
            f"Rename them, or leave {Option('melt')} out.",
            code="nothing_to_melt",
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
            "names of a wide table's columns hold one thing; name one.",
            code="melt_of_several",
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
            code="melt_of_unknown",
        )

    for name in (ours, cells):
        if name in table.names:
            raise SpecError(
                f"{table.path} has a column {shown(name)}, which {Option('melt')} is "
                "to fill from the names and the cells of others.",
                f"Rename it, or leave {Option('melt')} out.",
                code="melt_over_column",
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


_COUNT_CELL = re.compile(r"[-\d.,' ]+( ?(gpus?|tpus?|devices?|chips?))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Matching:
    """The matching of a table's columns with those of the observations."""

    columns: Mapping[str, Meaning]
    options: Mapping[str, str]
    unused: Sequence[str]

    @property
    def theirs(self) -> dict[str, str]:
        """Their column by ours, be it a column or an option."""
        found = {ours: meaning.theirs for ours, meaning in self.columns.items()}
        return {**found, **self.options}

    @property
    def numbers(self) -> dict[str, bool]:
        """Their columns of numbers, and whether each holds whole ones."""
        kinds = {ours: COLUMNS_BY_NAME[ours].kind for ours in self.columns}
        return {
            meaning.theirs: kinds[ours] == "integer"
            and meaning.factor == 1
            and ours not in LENGTHS
            for ours, meaning in self.columns.items()
            if kinds[ours] in ("integer", "number")
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """A column of theirs that is to fill one of ours."""

    theirs: str
    ours: str = ""  # empty: it fills none
    meaning: Meaning | None = None  # None: a setting
    yields: bool = False  # to a column that tells the same more directly


def match(table: ForeignTable, asked: ImportArguments) -> Matching:
    """Find the columns by what is said of them, by their names, and by aliases.

    A column of another name that is neither asked for as an axis nor a well-known
    setting is left unused.
    """
    _check_names(table, asked)
    known = {ours: meaning_of(ours) for ours in asked.column}
    mapped = {meaning.column if meaning else ours for ours, meaning in known.items()}
    named = {meaning.column for meaning in map(meaning_of, table.names) if meaning}
    given = {*named, *mapped, *asked.constant}
    tells_length = "time_to_target_s" in given or given.isdisjoint(SPEEDS)

    claims: list[Claim] = []
    for theirs in table.names:
        ours = [name for name, column in asked.column.items() if column == theirs]
        claims += [_asked_claim(name, theirs) for name in ours]
        if not ours and theirs not in asked.ignore:
            meaning = _known_meaning(table, theirs, tells_length=tells_length)
            claims.append(_classify(theirs, meaning, asked, mapped))

    matching = _resolve(table, asked, claims)
    given = {*matching.columns, *asked.constant}
    check_required(table, given, matching.unused)
    columns = {**matching.columns, **_of_epochs(table, matching.columns, asked)}
    return replace(matching, columns={**columns, **_as_asked(table, columns, asked)})


def _asked_claim(ours: str, theirs: str) -> Claim:
    meaning = meaning_as(ours, theirs)
    return Claim(theirs, meaning.column if meaning else ours, meaning)


def _known_meaning(
    table: ForeignTable, theirs: str, *, tells_length: bool
) -> Meaning | None:
    """Return what a column says by its name, or else by its cells."""
    meaning = meaning_of(theirs) or _by_content(table, theirs)
    if meaning is None and tells_length:
        length = meaning_of(f"{theirs} to target")
        return length if length and length.column in LENGTHS else None
    return meaning


def _classify(
    theirs: str, meaning: Meaning | None, asked: ImportArguments, mapped: set[str]
) -> Claim:
    """Return whether a column is a setting, a known quantity, or left unused."""
    is_setting = theirs in asked.axis or (meaning is None and is_axis(theirs))
    if is_setting and (meaning is None or meaning.column not in CURVE_COLUMNS):
        return Claim(theirs, OPTION_PREFIX + theirs.removeprefix(OPTION_PREFIX))
    if meaning is None or meaning.column in mapped:
        return Claim(theirs)
    return Claim(theirs, meaning.column, meaning, yields=meaning.is_derived)


def _resolve(
    table: ForeignTable, asked: ImportArguments, claims: Sequence[Claim]
) -> Matching:
    """Give each of our columns the most direct one of theirs; refuse two."""
    columns: dict[str, Meaning] = {}
    options: dict[str, str] = {}
    unused = [claim.theirs for claim in claims if not claim.ours]

    filling = [claim for claim in claims if claim.ours]
    for claim in sorted(filling, key=_directness):
        same = {*SPEEDS} if claim.ours in SPEEDS else {claim.ours}
        if claim.yields and not same.isdisjoint(columns):
            unused.append(claim.theirs)
            continue

        first = columns[claim.ours].theirs if claim.ours in columns else None
        first = options.get(claim.ours, first)
        if first or claim.ours in asked.constant:
            raise _second(table, claim, first)

        if claim.meaning is None:
            options[claim.ours] = claim.theirs
        else:
            columns[claim.ours] = replace(claim.meaning, theirs=claim.theirs)

    return Matching(columns, options, tuple(unused))


def _directness(claim: Claim) -> tuple[bool, ...]:
    # those that yield come last, the most direct one of them first
    return (True, *claim.meaning.directness) if claim.meaning and claim.yields else ()


def _second(table: ForeignTable, claim: Claim, first: str | None) -> SpecError:
    where = f"the column {shown(first)}" if first else "a value for all rows"
    return SpecError(
        f"{table.path}: {claim.ours} is given by the column {shown(claim.theirs)} and "
        f"by {where}.",
        f"Say which it is ({Option('column', 'THEIRS', key=claim.ours)}), or leave one "
        f"out ({Option('ignore', [claim.theirs])}).",
        code="column_said_twice",
    )


def _by_content(table: ForeignTable, theirs: str) -> Meaning | None:
    # the name may mean a number or the name of devices
    if plain(theirs) not in COUNT_OR_NAME:
        return None
    filled = table.filled(theirs)
    counts = list(filter(_COUNT_CELL.fullmatch, filled))
    is_count = 2 * len(counts) > len(filled) if filled else theirs.endswith("s")
    return Meaning("world_size" if is_count else "device_name")


def _as_asked(
    table: ForeignTable, columns: Mapping[str, Meaning], asked: ImportArguments
) -> dict[str, Meaning]:
    options = [
        f"--{name.replace('_', '-')}"
        for name in ("per_device", "tokens_per_sample")
        if getattr(asked, name)
    ]
    if not options:
        return {}

    name = "throughput_samples_per_s"
    found = columns.get(name)
    if found is None:
        raise SpecError(
            f"{table.path}: {' and '.join(options)} is said of a throughput, but none "
            f"is read from its columns, {listed(table.names)}.",
            "Leave the option out, or name the column "
            f"({Option('column', 'THEIRS', key=name)}).",
            code="no_throughput",
        )

    changed = replace(
        found,
        is_per_device=found.is_per_device or asked.per_device,
        is_in_tokens=found.is_in_tokens or asked.tokens_per_sample is not None,
    )
    return {name: changed}


def _of_epochs(
    table: ForeignTable, columns: Mapping[str, Meaning], asked: ImportArguments
) -> dict[str, Meaning]:
    name, samples = "samples_to_target", asked.samples_per_epoch
    length = columns.get(name)
    if length and length.unit == EPOCHS:
        if samples is None:
            raise SpecError(
                f"{table.path}: {shown(length.theirs)} counts epochs, and nothing says "
                "how many samples one has.",
                f"Say {Option('samples_per_epoch', 1281167)}.",
                code="epoch_unknown",
            )
        return {name: replace(length, factor=samples)}

    if samples is not None:
        raise SpecError(
            f"{table.path}: {Option('samples_per_epoch', samples)} is said, but no "
            "column is read as a number of epochs.",
            f"Leave it out, or say {Option('column', 'NAME', key='epochs_to_target')}.",
            code="no_epochs",
        )

    return {}


def _check_names(table: ForeignTable, asked: ImportArguments) -> None:
    for name in (*asked.column, *asked.constant):
        is_unit = name in asked.column and meaning_of(name) is not None
        if name not in SETTABLE and not name.startswith(OPTION_PREFIX) and not is_unit:
            raise SpecError(
                f"{name!r} is no column that a table can fill. "
                f"{did_you_mean(SETTABLE, name)}Columns: {', '.join(SETTABLE)}, "
                f"{OPTION_PREFIX}<axis>.",
                code="unknown_column",
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
                f"{listed(table.names)}.",
                code="column_missing",
            )


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
_LEAST_NAMED = 3


def check_required(table: ForeignTable, given: set[str], others: Sequence[str]) -> None:
    """Refuse a table without the columns of a measurement; ``others`` are not read."""
    tells_length = not given.isdisjoint(LENGTHS)
    missing = _missing(given, tells_length=tells_length)
    if not missing:
        return

    needs = "; ".join(
        " or ".join(" and ".join(names) for names in alternatives)
        for alternatives in missing
    )
    example = missing[0][0][0]

    wanted = {
        name for alternatives in missing for names in alternatives for name in names
    } - given
    if "time_to_target_s" in given and not tells_length:
        wanted.add("samples_to_target")

    lacks = f"{table.path} lacks columns that a measurement needs: {needs}."
    raise SpecError(
        " ".join([lacks, *_hints(table, wanted, others)]),
        f"Map a column ({Option('column', 'THEIRS', key=example)}), or give a value "
        f"for the whole table ({Option('constant', '...', key=example)}). Its columns: "
        f"{listed(table.names)}.",
        code="columns_missing",
    )


def _missing(given: set[str], *, tells_length: bool) -> list[Sequence[Sequence[str]]]:
    required = _REQUIRED
    if tells_length and "time_to_target_s" in given:
        given = {*given, "step_time_s"}
    elif tells_length and given.isdisjoint(OF_DEVICES):
        required = ((("global_batch_size",),),)

    return [
        alternatives
        for alternatives in required
        if not any(given.issuperset(names) for names in alternatives)
    ]


def _hints(
    table: ForeignTable, wanted: set[str], others: Sequence[str]
) -> Iterator[str]:
    known = {
        name: meaning.column
        for name, meaning in known_names().items()
        if meaning.column in wanted
    }
    yield from filter(None, (_hint(theirs, wanted, known) for theirs in others))
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

    if "step_time_s" in wanted:
        counts = list(by_number(table, others))
        filled = [name for name in others if is_of_numbers(table, name)]
        if len(counts) > 1 or len(filled) >= _LEAST_NAMED:
            names, ours = (counts, "world_size") if counts[1:] else (filled, "workload")
            unit = next(filter(None, map(unit_in, names)), "throughput_samples_per_s")
            melt = Option("melt", unit, key=ours)
            yield (
                f"If the names of {shown(names[0])}, {shown(names[1])}, ... are values "
                f"of one thing, say of which, and what their cells hold: {melt}."
            )

        yield (
            "The time of a step is in seconds, unless its name says otherwise "
            "(step_time_ms)."
        )


def _hint(theirs: str, wanted: set[str], known: Mapping[str, str]) -> str | None:
    """Return what a column that is not read may be."""
    name = plain(theirs)
    if "local_batch_size" in wanted and name in AMBIGUOUS_BATCHES:
        of_one = Option("column", theirs, key="local_batch_size")
        of_all = Option("column", theirs, key="global_batch_size")
        return (
            f"{shown(theirs)} may be the batch of one device ({of_one}) or of all "
            f"({of_all})."
        )

    if "step_time_s" in wanted and _WHOLE.search(name):
        return (
            f"{shown(theirs)} seems to be the time of an epoch or a training; needed "
            "is that of a step (time / number of steps), or samples per second. If it "
            "is of a training to a target, "
            f"{Option('column', theirs, key='time_to_target_s')} says so."
        )

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if close and not _SPREAD.fullmatch(name):
        return f"{shown(theirs)} looks like {known[close[0]]}."

    return None

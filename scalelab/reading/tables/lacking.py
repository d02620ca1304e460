"""What a foreign table lacks for a measurement, and where it may be found."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
from scalelab.inputs.wording import Option
from scalelab.reading.tables.file import ForeignTable, listed
from scalelab.reading.tables.names import (
    AMBIGUOUS_BATCHES,
    LENGTHS,
    OF_DEVICES,
    known_names,
    plain,
)
from scalelab.reading.tables.reshape import by_number, is_of_numbers

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
            melt = Option("melt", "throughput_samples_per_s", key=ours)
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

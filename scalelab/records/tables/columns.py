"""Match the columns of a foreign table with those of the observations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.records.columns import COLUMNS, OPTION_PREFIX
from scalelab.records.tables.file import ForeignTable, listed, shown

ALIASES: Mapping[str, tuple[str, ...]] = {
    "workload": ("model", "benchmark", "network"),
    "device_name": ("gpu_type", "gpu_model", "gpu_name", "accelerator"),
    "num_nodes": ("nodes", "n_nodes", "nnodes", "node_count"),
    "world_size": (
        "gpus",
        "num_gpus",
        "n_gpus",
        "ngpus",
        "gpu_count",
        "devices",
        "num_devices",
        "ranks",
    ),
    "gpus_per_node": ("devices_per_node", "ranks_per_node", "gpus_per_server"),
    "local_batch_size": (
        "local_batch",
        "local_bsz",
        "per_gpu_batch",
        "per_gpu_batch_size",
        "batch_size_per_gpu",
        "per_device_train_batch_size",
        "micro_batch_size",
        "mbs",
    ),
    "gradient_accumulation_steps": (
        "accum_steps",
        "grad_accum",
        "grad_accum_steps",
        "accumulation_steps",
        "gradient_accumulation",
    ),
    "global_batch_size": (
        "global_batch",
        "global_bsz",
        "gbs",
        "effective_batch_size",
        "total_batch_size",
    ),
    "step_time_s": (
        "time_per_step_s",
        "iteration_time_s",
        "iter_time_s",
        "seconds_per_step",
        "sec_per_step",
        "s_per_step",
    ),
    "throughput_samples_per_s": (
        "throughput",
        "samples_per_s",
        "samples_per_sec",
        "samples_per_second",
        "images_per_s",
        "images_per_sec",
        "images_per_second",
    ),
    "precision": ("dtype",),
    "sequence_length": ("seq_len", "sequence_len"),
}
"""Well-known names of a column elsewhere; matched without regard to case and signs."""

_OURS = frozenset({"schema_version", "run", "trial_id", "attempt", "kind", "emulated"})
SETTABLE = tuple(column.name for column in COLUMNS if column.name not in _OURS)
"""Columns a foreign table may fill."""

_REQUIRED = (
    (("world_size",), ("num_nodes", "gpus_per_node")),
    (("num_nodes",), ("gpus_per_node",)),
    (("local_batch_size",), ("global_batch_size",)),
    (("step_time_s",), ("throughput_samples_per_s",)),
)
"""Each line: alternatives, one of which must be there, each a set of columns."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The matching of a table's columns with those of the observations.

    Parameters
    ----------
    columns
        The table's name of each column of the observations that it fills.
    options
        The table's name of each further axis.
    """

    columns: Mapping[str, str]
    options: Mapping[str, str]


def match_columns(
    table: ForeignTable, mapping: Mapping[str, str], constants: Iterable[str]
) -> Matching:
    """Find the columns by ``mapping``, by their own names and by well-known aliases.

    Parameters
    ----------
    table
        The foreign table.
    mapping
        The table's column for a column of the observations; wins over aliases.
    constants
        Columns of the observations whose value is given for the whole table.

    Raises
    ------
    SpecError
        If a name is unknown or used twice, or a required column is missing.
    """
    constants = set(constants)
    for name in (*mapping, *constants):
        _check_settable(name)
    for name, theirs in mapping.items():
        if theirs not in table.names:
            raise SpecError(
                f"{table.path} has no column {shown(theirs)}, which is to be {name}. "
                f"{_nearest(theirs, table.names)}Its columns: {listed(table.names)}."
            )
    columns: dict[str, str] = {}
    options: dict[str, str] = {}
    for theirs in table.names:
        ours = [name for name, mapped in mapping.items() if mapped == theirs]
        if not ours and (known := _known(theirs)) and known not in mapping:
            ours = [known]
        for name in ours:
            claimed = options if name.startswith(OPTION_PREFIX) else columns
            _claim(table, name, theirs, claimed, constants)
        if not ours:
            options[OPTION_PREFIX + theirs.removeprefix(OPTION_PREFIX)] = theirs
    _check_required(table, {*columns, *constants}, options.values())
    return Matching(columns, options)


def _claim(
    table: ForeignTable,
    name: str,
    theirs: str,
    claimed: dict[str, str],
    constants: set[str],
) -> None:
    if name in claimed or name in constants:
        other = claimed.get(name)
        where = f"the column {other!r}" if other else "a value for the whole table"
        raise SpecError(
            f"{table.path}: {name} is given by the column {shown(theirs)} and by "
            f"{where}. Say which it is with a mapping of {name}, or rename one column."
        )
    _check_unit(table, name, theirs)
    claimed[name] = theirs


def _check_settable(name: str) -> None:
    if name not in SETTABLE and not name.startswith(OPTION_PREFIX):
        raise SpecError(
            f"{name!r} is no column that a table can fill. {_nearest(name, SETTABLE)}"
            f"Columns: {', '.join(SETTABLE)}, {OPTION_PREFIX}<axis>."
        )


def _check_unit(table: ForeignTable, name: str, theirs: str) -> None:
    unit = re.search(r"_(ms|us|ns|min|msec|millis|minutes|hours|h)$", _plain(theirs))
    if name.endswith("_s") and unit:
        raise SpecError(
            f"{table.path}: the column {shown(theirs)} is to be {name}, which is in "
            f"seconds, but its name says {unit[1]}. Convert it to seconds and rename "
            "it."
        )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


_KNOWN = {
    _plain(name): ours for ours in SETTABLE for name in (ours, *ALIASES.get(ours, ()))
}


def _known(theirs: str) -> str | None:
    return _KNOWN.get(_plain(theirs))


def _check_required(
    table: ForeignTable, given: set[str], others: Iterable[str]
) -> None:
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
    near = "".join(
        f" {shown(theirs)} looks like {ours}."
        for theirs in others
        if (ours := _lookalike(theirs, wanted))
    )
    raise SpecError(
        f"{table.path} lacks columns that a measurement needs: {needs}.{near} Map a "
        f"column (--column {example}=THEIRS), or give a value for the whole table "
        f"(--constant {example}=...). "
        f"Its columns: {listed(table.names)}."
    )


def _lookalike(theirs: str, wanted: set[str]) -> str | None:
    names = {_plain(name): ours for name, ours in _KNOWN.items() if ours in wanted}
    close = difflib.get_close_matches(_plain(theirs), names, n=1, cutoff=0.75)
    return names[close[0]] if close else None


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {close[0]!r}? " if close else ""

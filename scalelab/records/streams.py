"""Streams, the reports of rank 0 while it runs: JSON lines and a compacted copy.

A stream is written by one process and survives its death up to the last whole line.
Reading a run's streams from thousands of text files is slow, so they are gathered in
one Parquet file, used for every attempt whose stream has not changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import StoreError
from scalelab.inputs.plain_files import opened, parse_json
from scalelab.records import cache
from scalelab.records.attempt import AttemptFiles, reading
from scalelab.records.ledger import attempts_on_disk

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_COUNTS = ("step", "samples")
_SAMPLED_ROWS = 1 << 16
_ROWS_PER_VALUE = 8


def read_lines(path: Path, *, below: Path | None = None) -> list[dict[str, Any]]:
    """Read JSON lines of a run, the directory ``below``; none if there is no file.

    What follows the last line end is a line being written, or torn by the end of its
    writer, and is left out. NaN, which foreign writers may have left, is missing.
    """
    return _rows(path, _content(path, 0, below))


def _content(path: Path, start: int, below: Path | None) -> bytes:
    with suppress(FileNotFoundError), reading(path), opened(path, below=below) as file:
        file.seek(start)
        return file.read()
    return b""


def _rows(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = content.split(b"\n")[:-1]
    try:
        # One call for the whole file is twice as fast as one per line.
        rows = parse_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        rows = []

    if len(rows) == len(lines) and all(type(values) is dict for values in rows):
        return list(rows)

    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            values = parse_json(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise StoreError(
                f"{path}, line {number} is no JSON object: {line[:60]!r}. Remove the "
                "line; only the last line of a stream may be torn."
            )
        rows.append(values)

    return rows


class FollowedStream:
    """Reads the lines that a file has gained since the last call, once it exists."""

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._path, self._below = path, below
        self._num_read = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call."""
        content = _content(self._path, self._num_read, self._below)
        whole = content[: content.rfind(b"\n") + 1]
        self._num_read += len(whole)
        return _rows(self._path, whole)


def _table(name: str, trials: Path) -> pa.Table:
    import pyarrow as pa

    path = AttemptFiles(trials / name).stream
    rows = read_lines(path, below=trials.parent)
    trial_id, number = name.split("/")
    index = pa.array([0] * len(rows), pa.int32())
    key = {
        "trial_id": pa.DictionaryArray.from_arrays(index, [trial_id]),
        "attempt": pa.array([int(number)] * len(rows), pa.int64()),
    }

    reported: dict[str, pa.Array] = {}
    for field in dict.fromkeys(chain.from_iterable(rows)):
        column = [values.get(field) for values in rows]
        if any(value is not None for value in column):
            reported[field] = _array(path, field, column)

    return pa.table({**key, **reported} | key)


def _array(path: Path, name: str, column: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        array = pa.array(column)
        if name in _COUNTS:
            return array.cast(pa.int64())
        return array.cast(pa.float64()) if pa.types.is_integer(array.type) else array
    except (pa.ArrowException, OverflowError) as error:
        kinds = int if name in _COUNTS else int | float
        misfits = (
            at
            for at, value in enumerate(column, start=1)
            if value is not None
            and (not isinstance(value, kinds) or isinstance(value, bool))
        )

        line = next(misfits, len(column))
        raise StoreError(
            f"{path}, line {line}: {name}={column[line - 1]!r} does not fit with the "
            f"rest of the column. Report {name} as a number on every line, or as text "
            "on every line; step and samples as whole numbers."
        ) from error


class Streams:
    """The streams of a run's attempts."""

    def __init__(self, directory: Path) -> None:
        self._trials = directory / "trials"
        self._cache = directory / "cache" / "streams.parquet"

    def all(self, *, skips_unreadable: bool = False) -> pd.DataFrame:
        """Return all streams in one frame, unchanged ones from the compacted copy."""
        unreadable: dict[str, str] | None = {} if skips_unreadable else None
        frame: pd.DataFrame = self._gathered(self._sizes(), unreadable).to_pandas()
        return frame

    def compact(self) -> list[str]:
        """Write the compacted copy, unless it is up to date; return what is wrong."""
        sizes = self._sizes()
        if cache.read_source(self._cache) == sizes:
            return []
        unreadable: dict[str, str] = {}
        table = self._gathered(sizes, unreadable)
        read = {name: size for name, size in sizes.items() if name not in unreadable}
        cache.write_table(self._cache, table, read, _encodings(table))
        return list(unreadable.values())

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for (trial_id, number), files in attempts_on_disk(self._trials):
            with suppress(FileNotFoundError):
                sizes[f"{trial_id}/{number:03d}"] = files.stream.stat().st_size
        return sizes

    def _gathered(
        self, sizes: Mapping[str, int], unreadable: dict[str, str] | None = None
    ) -> pa.Table:
        """Read changed streams, the others from the compacted copy if it is valid.

        Those that cannot be read are entered into ``unreadable`` with the reason;
        without it that is an error.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        compacted = cache.read_source(self._cache) or {}

        stands = compacted and compacted.items() <= sizes.items()
        if stands:
            with cache.own_file(self._cache) as file:
                tables.append(pq.read_table(file))

        for name in sizes:
            if stands and name in compacted:
                continue
            try:
                tables.append(_table(name, self._trials))
            except StoreError as error:
                if unreadable is None:
                    raise
                unreadable[name] = str(error)

        tables = tables or [_table("none/0", self._trials)]
        return pa.concat_tables(tables, promote_options="permissive")


def _encodings(table: pa.Table) -> dict[str, str]:
    """Choose Parquet encodings of columns; others are dictionary-encoded.

    Times that a script rounded to a millisecond take few values, and a dictionary is a
    quarter of the size; in times of full precision no value comes twice, but their
    leading bytes are alike.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    encodings = {}
    for field in table.schema:
        if pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(field.type):
            sample = table[field.name].slice(0, _SAMPLED_ROWS)
            if pc.count_distinct(sample).as_py() * _ROWS_PER_VALUE > len(sample):
                encodings[field.name] = "BYTE_STREAM_SPLIT"

    return encodings

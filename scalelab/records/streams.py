"""Streams, the reports of rank 0 while it runs: JSON lines and a compacted copy.

A stream is written by one process and survives its death up to the last whole line.
Reading a run's streams from thousands of text files is slow, so they are gathered in
one Parquet file, used for every attempt whose stream has not changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import StoreError
from scalelab.records import cache
from scalelab.records.attempt import AttemptFiles
from scalelab.records.ledger import AttemptKey
from scalelab.records.plain_files import opened, parse_json
from scalelab.records.recovery import attempt_directory, attempts_on_disk

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_COUNTS = ("step", "samples")
_SAMPLED_ROWS = 1 << 16
_ROWS_PER_VALUE = 8


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; none where the file is not there.

    What follows the last line end is a line being written, or torn by the end of its
    writer, and is left out. NaN, which foreign writers may have left, is missing.
    """
    return _rows(path, _content(path, 0))


def _content(path: Path, start: int) -> bytes:
    try:
        with opened(path) as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror}. Give yourself read permission "
            "or check the file system."
        ) from error


def _rows(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = content.split(b"\n")[:-1]
    try:
        # One call for the whole file is twice as fast as one per line.
        rows = parse_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        rows = []
    if len(rows) == len(lines) and all(type(values) is dict for values in rows):
        return list(rows)
    return [_read_line(path, index, line) for index, line in enumerate(lines, start=1)]


class FollowedStream:
    """Reads the lines that a stream has gained since the last call.

    Parameters
    ----------
    path
        The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_read = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call."""
        content = _content(self._path, self._num_read)
        whole = content[: content.rfind(b"\n") + 1]
        self._num_read += len(whole)
        return _rows(self._path, whole)


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = parse_json(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise StoreError(
            f"{path}, line {number} is no JSON object: {line[:60]!r}. Remove the line; "
            "only the last line of a stream may be torn."
        )
    return values


def _table(path: Path) -> pa.Table:
    """Read a stream; columns in order of appearance, those without a value left out."""
    import pyarrow as pa

    rows = read_lines(path)
    names = dict.fromkeys(name for values in rows for name in values)
    arrays = {}
    for name in names:
        column = [values.get(name) for values in rows]
        if any(value is not None for value in column):
            arrays[name] = _array(path, name, column)
    return pa.table(arrays)


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

    def one(self, key: AttemptKey) -> pd.DataFrame:
        """Return the stream of one attempt."""
        import pyarrow.parquet as pq

        trial_id, number = key
        path = AttemptFiles(attempt_directory(self._trials, *key)).stream
        size = _size(path)
        if size is None or self._compacted().get(_name(key)) != size:
            frame: pd.DataFrame = _table(path).to_pandas()
            return frame
        chosen = [("trial_id", "==", trial_id), ("attempt", "==", number)]
        with cache.own_file(self._cache) as file:
            table = pq.read_table(file, filters=chosen)
        names = [
            name
            for name in table.column_names
            if name not in ("trial_id", "attempt")
            and table[name].null_count < table.num_rows
        ]
        compacted: pd.DataFrame = table.select(names).to_pandas()
        return compacted

    def all(self) -> pd.DataFrame:
        """Return all streams in one frame, the compacted copy brought up to date."""
        import pyarrow.parquet as pq

        if not self._is_current():
            frame: pd.DataFrame = self._gather()[0].to_pandas()
            return frame
        with cache.own_file(self._cache) as file:
            compacted: pd.DataFrame = pq.read_table(file).to_pandas()
        return compacted

    def compact(self) -> list[str]:
        """Write the compacted copy, unless it is up to date."""
        if self._is_current():
            return []
        unreadable: dict[str, str] = {}
        table, sizes = self._gather(unreadable)
        read = {name: size for name, size in sizes.items() if name not in unreadable}
        cache.write_table(self._cache, table, read, _encodings(table))
        return list(unreadable.values())

    def _compacted(self) -> Mapping[str, Any]:
        return cache.read_source(self._cache) or {}

    def _is_current(self) -> bool:
        return cache.read_source(self._cache) == self._sizes()

    def _paths(self) -> Iterator[tuple[AttemptKey, Path]]:
        for key, files in attempts_on_disk(self._trials):
            if files.stream.exists():
                yield key, files.stream

    def _sizes(self) -> dict[str, int | None]:
        return {_name(key): _size(path) for key, path in self._paths()}

    def _gather(
        self, unreadable: dict[str, str] | None = None
    ) -> tuple[pa.Table, dict[str, int | None]]:
        """Read changed streams, the others from the compacted copy if it is valid.

        Those that cannot be read are entered into ``unreadable`` with the reason;
        without it that is an error.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        sizes = self._sizes()
        compacted = self._compacted()
        stands = compacted and compacted.items() <= sizes.items()
        tables = []
        if stands:
            with cache.own_file(self._cache) as file:
                tables.append(pq.read_table(file))
        for key, path in self._paths():
            name = _name(key)
            if stands and name in compacted:
                continue
            try:
                tables.append(_with_key(key, _table(path)))
            except StoreError as error:
                if unreadable is None:
                    raise
                unreadable[name] = str(error)
        if not tables:
            tables = [_with_key(("", 0), pa.table({}))]
        gathered = pa.concat_tables(tables, promote_options="permissive")
        return gathered, sizes


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


def _with_key(key: AttemptKey, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    trial_id, number = key
    index = pa.array([0] * table.num_rows, pa.int32())
    trial_ids = pa.DictionaryArray.from_arrays(index, [trial_id])
    numbers = pa.array([number] * table.num_rows, pa.int64())
    table = table.add_column(0, "attempt", numbers)
    return table.add_column(0, "trial_id", trial_ids)


def _name(key: AttemptKey) -> str:
    trial_id, number = key
    return f"{trial_id}/{number:03d}"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None

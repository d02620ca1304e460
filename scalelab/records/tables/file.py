"""Reading a foreign table: its header and its cells as text, with their lines."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError

MAX_BYTES = 256 * 2**20
_SHOWN_TEXT = 60
_SHOWN_NAMES = 30


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table: where it stands and its cells by column, as text."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A foreign table as text, before its columns are matched."""

    path: Path
    sha256: str
    names: tuple[str, ...]
    rows: tuple[TableRow, ...]


def read_table(path: Path) -> ForeignTable:
    """Read a CSV file (comma-separated, UTF-8, with a header) or a Parquet file.

    Raises
    ------
    SpecError
        If it is no such file, empty, ragged, or names a column twice.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise SpecError(
                f"{path} has {size / 2**20:.0f} MiB; a table of measurements may have "
                f"{MAX_BYTES >> 20}. Give one row per configuration, not one per step."
            )
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}. Give a CSV or Parquet file."
        ) from error
    read = _read_parquet if content.startswith(b"PAR1") else _read_csv
    names, rows = read(path, content)
    return ForeignTable(path, hashlib.sha256(content).hexdigest(), names, tuple(rows))


def _read_csv(path: Path, content: bytes) -> tuple[tuple[str, ...], list[TableRow]]:
    records = list(_records(path, _decode(path, content)))
    if not records:
        raise SpecError(f"{path} is empty. The first line must name the columns.")
    _, header = records[0]
    names = tuple(name.strip() for name in header)
    _check_names(path, names)
    if len(records) == 1:
        raise SpecError(
            f"{path} has a header but no rows. Add one row per measured configuration."
        )
    rows = []
    for line, cells in records[1:]:
        if len(cells) != len(names):
            raise SpecError(
                f"{path}, line {line} has {len(cells)} cells but the header has "
                f"{len(names)}. Give every row one cell per column; quote text that "
                "contains commas."
            )
        texts = (cell.strip() for cell in cells)
        rows.append(TableRow(line, dict(zip(names, texts, strict=True))))
    return names, rows


def _decode(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8. "
            "Save the table as CSV in UTF-8, or as Parquet."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SpecError(
            f"{path}, line {line} contains a zero byte, so it is no text. Save the "
            "table as CSV in UTF-8, or as Parquet."
        )
    return text


def shown(text: str) -> str:
    """Return a cell or a name as a message shows it: quoted, and not too long."""
    return repr(text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + "...")


def listed(names: Sequence[str]) -> str:
    """Return names as a message lists them."""
    rest = len(names) - _SHOWN_NAMES
    more = f", ... ({rest} more)" if rest > 0 else ""
    return ", ".join(name[:_SHOWN_TEXT] for name in names[:_SHOWN_NAMES]) + more


def _records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of every record with a cell that is filled."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise SpecError(
            f"{path}, line {line} is not CSV: {error}. Close every quotation mark, and "
            "double those inside quoted text."
        ) from error


def _check_names(path: Path, names: tuple[str, ...]) -> None:
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and separator in names[0]:
            raise SpecError(
                f"{path}: the header has one column, {shown(names[0])}, that contains "
                f"{name}. Separate the columns by commas."
            )
    for position, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            raise SpecError(
                f"{path}, line 1: column {position} has the name {shown(name)}. Give "
                "every column a printable name."
            )
        if names.index(name) != position - 1:
            raise SpecError(
                f"{path}, line 1: the column {shown(name)} stands there twice, as "
                f"number {names.index(name) + 1} and {position}. Remove or rename one "
                "of them."
            )


def _read_parquet(path: Path, content: bytes) -> tuple[tuple[str, ...], list[TableRow]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (OSError, pa.ArrowException) as error:
        raise SpecError(
            f"{path} begins like a Parquet file but cannot be read: "
            f"{str(error).partition(chr(10))[0].rstrip('.')}. Write it "
            "again, or save the table as CSV."
        ) from error
    names = tuple(table.column_names)
    _check_names(path, names)
    if table.num_rows == 0:
        raise SpecError(
            f"{path} has columns but no rows. Add one row per measured configuration."
        )
    rows = [
        TableRow(number, {name: _text(value) for name, value in values.items()})
        for number, values in enumerate(table.to_pylist(), start=1)
    ]
    return names, rows


def _text(value: object) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)

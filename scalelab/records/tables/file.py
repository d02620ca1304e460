"""Reading a foreign table: its header and its cells as text, with their lines."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.records.tables.header import Record, named, without_rules

MAX_BYTES = 256 * 2**20
_SEPARATORS = ",;\t|"
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table: where it stands and its cells by column, as text."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A foreign table as text, before its columns are matched.

    Parameters
    ----------
    separator
        Between the columns of a text; empty for Parquet.
    """

    path: Path
    sha256: str
    names: tuple[str, ...]
    rows: tuple[TableRow, ...]
    separator: str = ""
    passed_over: tuple[str, ...] = ()


def read_table(path: Path) -> ForeignTable:
    """Read a CSV file (UTF-8, with a header) or a Parquet file.

    The columns of a CSV file are separated by commas, semicolons, tabs or bars. Title
    lines above the header, unnamed columns without content, and columns that stand
    there twice with the same cells are passed over.
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
    if content.startswith(b"PAR1"):
        records, separator = _parquet_records(path, content), ""
    else:
        text = _decode(path, content)
        separator = _separator(text)
        records = without_rules(list(_records(path, text, separator)), separator)
    if not records:
        raise SpecError(f"{path} is empty. The first line must name the columns.")
    names, body, passed_over = named(path, records)
    if not body:
        raise SpecError(
            f"{path} has a header but no rows. Add one row per measured configuration."
        )
    rows = tuple(
        TableRow(line, dict(zip(names, cells, strict=True))) for line, cells in body
    )
    digest = hashlib.sha256(content).hexdigest()
    return ForeignTable(path, digest, names, rows, separator, passed_over)


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


def _separator(text: str) -> str:
    """Return what separates the columns: what most of the first lines agree on."""
    lines = [line for line in text.splitlines() if line.strip()][:_LOOKED_AT]
    agreeing: dict[str, tuple[int, int]] = {}
    for separator in _SEPARATORS:
        try:
            widths = Counter(map(len, csv.reader(lines, delimiter=separator)))
        except csv.Error:
            continue
        width, count = max(widths.items(), key=lambda each: each[1], default=(0, 0))
        if width > 1:
            agreeing[separator] = (count, width)
    return max(agreeing, key=lambda each: agreeing[each], default=",")


def _records(path: Path, text: str, separator: str) -> Iterator[Record]:
    """Yield the first line and the cells of every record with a cell that is filled."""
    stream = io.StringIO(text, newline="")
    reader = csv.reader(stream, delimiter=separator, strict=True)
    line = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield line, stripped
            line = reader.line_num + 1
    except csv.Error as error:
        raise SpecError(
            f"{path}, line {line} is not CSV: {error}. Close every quotation mark, and "
            "double those inside quoted text."
        ) from error


def _parquet_records(path: Path, content: bytes) -> list[Record]:
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
    columns = [[_text(cell) for cell in column] for column in _columns(table)]
    rows = enumerate(map(list, zip(*columns, strict=True)), start=1)
    return [(0, list(table.column_names)), *rows]


def _columns(table: object) -> Sequence[Sequence[object]]:
    return [column.to_pylist() for column in table.columns]  # type: ignore[attr-defined]


def _text(value: object) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)

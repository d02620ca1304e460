"""Reading a foreign table: the names of its columns and its cells as text, by line."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.problems import shown
from scalelab.inputs.wording import Option
from scalelab.records.tables.names import is_known
from scalelab.records.tables.options import lines_listed, listed

MAX_BYTES = 256 * 2**20
_SEPARATORS = ",;\t|"
_LOOKED_AT = 20
_LEAST_KNOWN = 2
_SPACE = re.compile(r"\s*[\n\r]\s*")  # a wrapped heading of a spreadsheet
_RULE = re.compile(r"[+:=]*-[-+:=]*")

Record = tuple[int, list[str]]
"""The first line of a record, and its cells."""


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


def read_table(path: Path, header_row: int | None = None) -> ForeignTable:
    """Read a CSV file (UTF-8, with a header), a Markdown table or a Parquet file.

    The columns of a text are separated by commas, semicolons, tabs or bars. Lines above
    the header row, lines that repeat it, unnamed columns without content, and columns
    that stand there twice with the same cells are passed over.
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
        if header_row is not None:
            raise SpecError(
                f"{path} is a Parquet file, which names its columns itself.",
                f"Leave {Option('header_row', header_row)} out.",
            )
        separator, records = "", _parquet_records(path, content)
    else:
        lines = list(io.StringIO(_decode(path, content), newline=""))
        above = header_row - 1 if header_row else 0
        separator = _separator(lines[above:])
        records = list(_records(path, lines, above, separator))
        if separator == "|":
            records = _without_rules(records)
    if not records:
        raise SpecError(
            f"{path} is empty. The first line, or that of {Option('header_row')}, must "
            "name the columns."
        )
    if header_row is None:
        _refuse_title(path, records)
    (line, header), *others = records
    body = [record for record in others if record[1] != header]
    if not body:
        raise SpecError(
            f"{path} has a header but no rows. Add one row per measured configuration."
        )
    names, body = _named(path, line, header, body)
    repeated = [number for number, cells in others if cells == header]
    return ForeignTable(
        path,
        hashlib.sha256(content).hexdigest(),
        names,
        tuple(
            TableRow(number, dict(zip(names, cells, strict=True)))
            for number, cells in body
        ),
        separator,
        (f"Passed over what repeats the header: {lines_listed(repeated)}.",)
        if repeated
        else (),
    )


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


def _separator(lines: Sequence[str]) -> str:
    """Return what separates the columns: what most of the first lines agree on."""
    first = [line for line in lines if line.strip()][:_LOOKED_AT]
    agreeing: dict[str, tuple[int, int]] = {}
    for separator in _SEPARATORS:
        try:
            widths = Counter(map(len, csv.reader(first, delimiter=separator)))
        except csv.Error:
            continue
        width, count = max(widths.items(), key=lambda each: each[1], default=(0, 0))
        if width > 1:
            agreeing[separator] = (count, width)
    return max(agreeing, key=lambda each: agreeing[each], default=",")


def _records(
    path: Path, lines: Sequence[str], above: int, separator: str
) -> Iterator[Record]:
    """Yield the first line and the cells of every record with a cell that is filled."""
    reader = csv.reader(lines[above:], delimiter=separator, strict=True)
    line = above + 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield line, stripped
            line = above + reader.line_num + 1
    except csv.Error as error:
        raise SpecError(
            f"{path}, line {line} is not CSV: {error}. Close every quotation mark, and "
            "double those inside quoted text."
        ) from error


def _without_rules(records: Sequence[Record]) -> list[Record]:
    """Return the records without the rules of a Markdown or Org table, ``|---|---|``.

    Nor with the empty cells outside the bars at both ends of its lines.
    """
    kept = [
        (line, cells)
        for line, cells in records
        if not all(map(_RULE.fullmatch, filter(None, cells)))
    ]
    if any(cells[0] or cells[-1] or len(cells) < 3 for _, cells in kept):
        return kept
    return [(line, cells[1:-1]) for line, cells in kept]


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
    columns = [list(map(_text, column.to_pylist())) for column in table.columns]
    rows = enumerate(map(list, zip(*columns, strict=True)), start=1)
    return [(0, list(table.column_names)), *rows]


def _text(value: object) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _refuse_title(path: Path, records: Sequence[Record]) -> None:
    """Refuse a first line that names no known columns where a later one does."""
    known = [list(filter(is_known, cells)) for _, cells in records[:_LOOKED_AT]]
    most = max(known, key=len)
    if len(known[0]) < _LEAST_KNOWN <= len(most):
        (first, cells), line = records[0], records[known.index(most)][0]
        raise SpecError(
            f"{path}, line {first} ({shown(next(filter(None, cells)))}) does not name "
            f"known columns, but line {line} does: {listed(most)}.",
            f"Say {Option('header_row', line)} if the names stand there, or "
            f"{Option('header_row', first)} if line {first} has them.",
        )


def _named(
    path: Path, line: int, header: Sequence[str], body: Sequence[Record]
) -> tuple[tuple[str, ...], list[Record]]:
    """Return the names of the columns that count, and the cells in them."""
    names = [_SPACE.sub(" ", name) for name in header]
    while not names[-1]:
        names.pop()
    width = len(names)
    for number, cells in body:
        if len(cells) < width or any(cells[width:]):
            raise SpecError(
                f"{path}, line {number} has {counted(len(cells), 'cell')} but the "
                f"header has {width}. Give every row one cell per column; quote text, "
                f'and numbers such as "1,024", that contain commas. If line {line} '
                f"does not name the columns, say which does: {Option('header_row')}."
            )
    where = f"{path}, line {line}" if line else str(path)
    kept: list[int] = []
    for at, name in enumerate(names):
        column = [cells[at] for _, cells in body]
        if not name and _says_nothing(column):
            continue
        if not name or not name.isprintable():
            raise SpecError(
                f"{where}: column {at + 1} has the name {shown(name)}. Give every "
                "column a printable name, or say which other line has the names: "
                f"{Option('header_row')}."
            )
        first = names.index(name)
        if first == at:
            kept.append(at)
        elif column != [cells[first] for _, cells in body]:
            raise SpecError(
                f"{where}: the column {shown(name)} stands there twice, as number "
                f"{first + 1} and {at + 1}, with unlike cells. Remove or rename one of "
                "them."
            )
    cut = [(number, [cells[at] for at in kept]) for number, cells in body]
    return tuple(names[at] for at in kept), cut


def _says_nothing(cells: Sequence[str]) -> bool:
    """Whether the cells are empty, or count the rows from 0 or 1."""
    counts = (range(len(cells)), range(1, len(cells) + 1))
    return not any(cells) or any(list(map(str, each)) == [*cells] for each in counts)

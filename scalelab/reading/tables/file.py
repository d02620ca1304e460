"""A foreign table as text: its columns, its cells by line, and what users add to it."""

import csv
import hashlib
import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from scalelab.errors import SpecError
from scalelab.inputs.fields import (
    Flag,
    Names,
    PathText,
    PlainCount,
    Section,
    Texts,
    Values,
)
from scalelab.inputs.numerals import counted
from scalelab.inputs.plain_files import opened_by_name
from scalelab.inputs.problems import Option, shown

MAX_BYTES = 256 * 2**20
_SEPARATORS = ",;\t|"
_LOOKED_AT = 20
# An apostrophe that keeps a spreadsheet from running a text, as exports have it.
_APOSTROPHE = re.compile(r"'(?='*[=+\-@\t\r\n])")
_SPACE = re.compile(r"\s*[\n\r]\s*")  # a wrapped heading of a spreadsheet
_RULE = re.compile(r"[+:=]*-[-+:=]*")

_SHOWN_NAME = 60
_SHOWN_NAMES = 30
_SHOWN_LINES = 6

CARD_VERSION = 1  # of what `scalelab table --card` writes
_CARD = "scalelab_card:"
# What a cell of numbers holds where there is none, in small letters.
MISSING = frozenset(
    "- -- \u2013 \u2014 ? na n/a n.a. #n/a nan null none <na> tbd unknown".split()
) | {""}
# The first line of a record, and its cells.
Record = tuple[int, list[str]]


def _decimal(value: Any) -> Any:
    if value not in (None, ".", ","):
        raise SpecError(
            f"{shown(value)} is no decimal sign. Write '.' or ','.",
            code="no_decimal_sign",
        )
    return value


class ImportArguments(Section):
    """The arguments of ``scalelab.session.import_table``."""

    table: PathText
    directory: PathText
    # Ours may have another unit, or be another well-known name: ``tokens_per_s``.
    column: Texts = Field(
        default={}, description="Their column by ours, such as {'world_size': 'n'}."
    )
    constant: Values = Field(
        default={}, description="Values by column, such as {'num_nodes': 1}."
    )
    axis: Names = Field(default=(), description="Columns that are settings.")
    ignore: Names = Field(default=(), description="Columns that are not read.")
    melt: Texts = Field(
        default={},
        description="What the names and the cells of a wide table hold, such as "
        "{'world_size': 'throughput_samples_per_s'}.",
    )
    per_device: Flag = False
    tokens_per_sample: PlainCount = None
    samples_per_epoch: PlainCount = None
    decimal: Annotated[str | None, BeforeValidator(_decimal)] = None
    header_row: PlainCount = None
    accept_doubts: Flag = False


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
    separator: str = ""  # empty for Parquet
    passed_over: tuple[str, ...] = ()

    def filled(self, name: str) -> list[str]:
        """Return the cells of a column that hold something."""
        cells = (row.cells[name] for row in self.rows)
        return [cell for cell in cells if cell.lower() not in MISSING]


def read_table(path: Path, header_row: int | None = None) -> ForeignTable:
    """Read a CSV file (UTF-8, with a header), a Markdown table or a Parquet file.

    The columns of a text are separated by commas, semicolons, tabs or bars. Lines above
    the header row, lines that repeat it, unnamed columns without content, and columns
    that stand there twice with the same cells are passed over.
    """
    try:
        with opened_by_name(path, MAX_BYTES) as file:
            content = file.read()
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}. Give a CSV or Parquet file with "
            "one row per configuration, not one per step.",
            code="unreadable",
        ) from error

    if content.startswith(b"PAR1"):
        if header_row is not None:
            raise SpecError(
                f"{path} is a Parquet file, which names its columns itself.",
                f"Leave {Option('header_row', header_row)} out.",
                code="parquet_has_names",
            )
        separator, records = "", _parquet_records(path, content)
    else:
        separator, records = _text_records(path, content, (header_row or 1) - 1)

    if not records:
        raise SpecError(
            f"{path} is empty. The first line, or that of {Option('header_row')}, must "
            "name the columns.",
            code="empty_table",
        )

    line, header = records.pop(0)
    repeated = [number for number, cells in records if cells == header]

    body = [(number, cells) for number, cells in records if cells != header]
    if not body:
        raise SpecError(
            f"{path} has a header but no rows. Add one row per measured configuration.",
            code="no_rows",
        )

    names, rows = _named(path, line, header, body)
    return ForeignTable(
        path,
        hashlib.sha256(content).hexdigest(),
        names,
        rows,
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
            "Save the table as CSV in UTF-8, or as Parquet.",
            code="not_utf8",
        ) from error

    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SpecError(
            f"{path}, line {line} contains a zero byte, so it is no text. Save the "
            "table as CSV in UTF-8, or as Parquet.",
            code="not_text",
        )
    return text


def _separator(lines: Sequence[str]) -> str:
    # what most of the first lines agree on
    first = [line for line in lines if line.strip()][:_LOOKED_AT]
    agreeing: dict[str, tuple[int, int]] = {}
    for separator in _SEPARATORS:
        try:
            widths = Counter(map(len, csv.reader(first, delimiter=separator)))
        except csv.Error:
            continue
        width, count = max(
            widths.items(),
            key=lambda width_and_count: width_and_count[1],
            default=(0, 0),
        )
        if width > 1:
            agreeing[separator] = (count, width)

    return max(agreeing, key=lambda separator: agreeing[separator], default=",")


def _text_records(path: Path, content: bytes, above: int) -> tuple[str, list[Record]]:
    """Return what separates the columns, and every record with a filled cell.

    Left out are the rules of a Markdown or Org table, ``|---|---|``, and the empty
    cells outside the bars at both ends of its lines.
    """
    lines = list(io.StringIO(_decode(path, content), newline=""))[above:]
    if above == 0:
        above, lines = _of_card(path, lines)

    separator = _separator(lines)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    records: list[Record] = []

    line = above + 1
    try:
        for cells in reader:
            cells = [_plain(cell.strip(), separator) for cell in cells]
            filled = [*filter(None, cells)]
            is_rule = separator == "|" and all(map(_RULE.fullmatch, filled))
            if filled and not is_rule:
                records.append((line, cells))
            line = above + reader.line_num + 1
    except csv.Error as error:
        raise SpecError(
            f"{path}, line {line} is not CSV: {error}. Close every quotation mark, and "
            "double those inside quoted text.",
            code="not_csv",
        ) from error

    if separator != "|" or any(
        cells[0] or cells[-1] or len(cells) < 3 for _, cells in records
    ):
        return separator, records

    return separator, [(line, cells[1:-1]) for line, cells in records]


def _plain(cell: str, separator: str) -> str:
    """Return the text of a cell, without the marks of Markdown or a spreadsheet."""
    text = html.unescape(cell) if separator == "|" else cell
    return _APOSTROPHE.sub("", text, count=1) if text.startswith("'") else text


def _of_card(path: Path, lines: list[str]) -> tuple[int, list[str]]:
    """Return the table of a card that ``scalelab table --card`` wrote; else all."""
    marks = (n for n, line in enumerate(lines) if line.startswith(_CARD))
    if (mark := next(marks, None)) is None:
        return 0, lines

    version = lines[mark].removeprefix(_CARD).strip()
    if version != str(CARD_VERSION):
        raise SpecError(
            f"{path} is a card of version {version}; this ScaleLab reads "
            f"{CARD_VERSION}. Install the ScaleLab that wrote it, or a newer one.",
            code="newer_card",
        )

    below = (n for n, line in enumerate(lines) if n > mark and line.startswith("|"))
    first = next(below, len(lines))
    return first, [*takewhile(lambda line: line.startswith("|"), lines[first:])]


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value)
    return repr(value) if type(value) is float else str(value)


def _parquet_records(path: Path, content: bytes) -> list[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (OSError, pa.ArrowException) as error:
        raise SpecError(
            f"{path} begins like a Parquet file but cannot be read: "
            f"{str(error).partition(chr(10))[0].rstrip('.')}. Write it "
            "again, or save the table as CSV.",
            code="not_parquet",
        ) from error

    columns = [
        [_text_of(value) for value in column.to_pylist()] for column in table.columns
    ]
    rows = enumerate(map(list, zip(*columns, strict=True)), start=1)
    return [(0, list(table.column_names)), *rows]


def _named(
    path: Path, line: int, header: Sequence[str], body: Sequence[Record]
) -> tuple[tuple[str, ...], tuple[TableRow, ...]]:
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
                f"does not name the columns, say which does: {Option('header_row')}.",
                code="cells_do_not_match",
            )

    where = f"{path}, line {line}" if line else str(path)
    kept = _kept(where, names, [cells for _, cells in body])
    rows = (
        TableRow(number, {name: cells[at] for name, at in kept.items()})
        for number, cells in body
    )
    return tuple(kept), tuple(rows)


def _kept(
    where: str, names: Sequence[str], body: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Return the places of columns by name, without those that say nothing."""
    kept: dict[str, int] = {}
    counts = [[str(start + at) for at in range(len(body))] for start in (0, 1)]
    for at, name in enumerate(names):
        column = [cells[at] for cells in body]
        if not name and (column in counts or not any(column)):
            continue

        if not name or not name.isprintable():
            raise SpecError(
                f"{where}: column {at + 1} has the name {shown(name)}. Give every "
                "column a printable name, or say which other line has the names: "
                f"{Option('header_row')}.",
                code="unprintable_name",
            )

        first = kept.setdefault(name, at)
        if column != [cells[first] for cells in body]:
            raise SpecError(
                f"{where}: the column {shown(name)} stands there twice, as number "
                f"{first + 1} and {at + 1}, with unlike cells. Remove or rename one of "
                "them.",
                code="column_twice",
            )

    return kept


def listed(names: Sequence[str]) -> str:
    """Return names as a message lists them."""
    rest = len(names) - _SHOWN_NAMES
    more = f", ... ({rest} more)" if rest > 0 else ""
    return ", ".join(name[:_SHOWN_NAME] for name in names[:_SHOWN_NAMES]) + more


def lines_listed(lines: Iterable[int]) -> str:
    """Return numbers of lines as a message lists them.

    >>> lines_listed([3]), lines_listed(range(2, 20))
    ('line 3', 'lines 2, 3, 4, 5, 6, 7 and 12 more')
    """
    every = list(lines)
    first, rest = every[:_SHOWN_LINES], len(every) - _SHOWN_LINES
    more = f" and {rest} more" if rest > 0 else ""
    return f"line{'s' * (len(every) > 1)} {', '.join(map(str, first))}{more}"

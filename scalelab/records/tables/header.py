"""Finding the names of the columns above the rows of a foreign table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.records.tables.names import is_known, plain
from scalelab.records.tables.words import lines_listed, shown

Record = tuple[int, list[str]]
"""The first line of a record, and its cells."""

_NUMBER = re.compile(r"[+-]?[\d.,' ]*\d[\d.,' ]*%?", re.ASCII)
_SPACE = re.compile(r"\s*[\n\r]\s*")  # a wrapped heading of a spreadsheet
_RULE = re.compile(r"[+:=]*-[-+:=]*")
_SUMS = frozenset("average avg mean median total totals sum std stdev min max".split())
_MOST_TITLES = 10
_LEAST_KNOWN = 2
_WIDTHS_OF_PROSE = 3


def without_rules(records: list[Record], separator: str) -> list[Record]:
    """Return the records without the rules of a Markdown or Org table, ``|---|---|``.

    Nor with the empty cells outside the bars at both ends of its lines.
    """
    if separator != "|":
        return records
    kept = [
        (line, cells)
        for line, cells in records
        if not all(map(_RULE.fullmatch, filter(None, cells)))
    ]
    if any(cells[0] or cells[-1] or len(cells) < 3 for _, cells in kept):
        return kept
    return [(line, cells[1:-1]) for line, cells in kept]


def named(
    path: Path, records: Sequence[Record]
) -> tuple[tuple[str, ...], list[Record], tuple[str, ...]]:
    """Return the names of the columns, the rows below them, and what is not among them.

    The rows are of equal width. Lines that repeat the header or sum others up are none.
    """
    at = _header_at(records)
    line, header = records[at]
    body = [record for record in records[at + 1 :] if record[1] != header]
    _refuse_prose(path, header, body)
    repeated = [number for number, cells in records[at + 1 :] if cells == header]
    names = [_SPACE.sub(" ", name) for name in _below_groups(records, at)]
    width = max((n for n, name in enumerate(names, 1) if name), default=len(names))
    if any(any(cells[width:]) for _, cells in body if len(cells) == len(header)):
        width = len(names)
    names = names[:width]
    may_be_title = not any(len(cells) == len(header) for _, cells in body)
    hint = f" If line {line} is a title, remove it." * may_be_title
    rows = [_cut(path, number, cells, width, hint) for number, cells in body]
    kept = _kept(path, line, names, rows)
    if len(kept) < width:
        rows = [(number, [cells[at] for at in kept]) for number, cells in rows]
    sums = _sums(rows)
    told = tuple(
        f"Passed over what {what}: {lines_listed(lines)}."
        for what, lines in (("repeats the header", repeated), ("sums up rows", sums))
        if lines
    )
    rows = [row for row in rows if row[0] not in sums]
    return tuple(names[at] for at in kept), rows, told


def _sums(rows: Sequence[Record]) -> dict[int, list[str]]:
    """Return the lines with a word such as total that leave cells empty.

    These cells are filled in all other rows.
    """
    sums = {line: cells for line, cells in rows if _begins_like_a_sum(cells)}
    others = [cells for line, cells in rows if line not in sums]
    always = [at for at, cells in enumerate(zip(*others, strict=True)) if all(cells)]
    return {
        line: cells
        for line, cells in sums.items()
        if not all(cells[at] for at in always)
    }


def _begins_like_a_sum(cells: Sequence[str]) -> bool:
    return plain(next(filter(None, cells), "")) in _SUMS


def _header_at(records: Sequence[Record]) -> int:
    """Return which record names the columns: the first, below titles and groups.

    A title with commas has several cells, but unlike the names below it no known one.
    """
    first = _below_titles(records)
    for at, (_, cells) in enumerate(records[first:_MOST_TITLES], start=first):
        num_known = sum(map(is_known, cells))
        if num_known >= _LEAST_KNOWN:
            return at
        if num_known or not _are_names(cells, 1):
            break
    return first


def _below_titles(records: Sequence[Record]) -> int:
    """Return the first record below those that leave most of their cells empty.

    A title fills one cell of a wide table. Groups are names over several columns, which
    leave cells empty and have a row of names below them.
    """
    for at, (_, cells) in enumerate(records[:_MOST_TITLES]):
        below = records[at + 1][1] if at + 1 < len(records) else []
        is_title = len(list(filter(None, cells))) == 1 and len(below) > 1
        is_group = not all(cells) and _are_names(below, min(2, len(cells)))
        if not is_title and not is_group:
            return at
    return 0


def _are_names(cells: Sequence[str], least: int) -> bool:
    filled = list(filter(None, cells))
    return len(filled) >= least and not any(map(_NUMBER.fullmatch, filled))


def _below_groups(records: Sequence[Record], at: int) -> list[str]:
    """Return the names, those that occur twice with the group they stand under."""
    names = records[at][1]
    above = records[at - 1][1] if at else []
    if len(above) != len(names) or len(list(filter(None, above))) < 2:
        return names
    groups = [
        next((each for each in reversed(above[: n + 1]) if each), "")
        for n in range(len(above))
    ]
    return [
        f"{group} {name}".strip() if names.count(name) > 1 or not name else name
        for group, name in zip(groups, names, strict=True)
    ]


def _refuse_prose(path: Path, header: Sequence[str], body: Sequence[Record]) -> None:
    """Refuse a text whose lines have one number of cells here and another there."""
    widths = {len(cells) for _, cells in body}
    if len(widths) >= _WIDTHS_OF_PROSE and not any(map(is_known, header)):
        raise SpecError(
            f"{path} is no table: its lines have {min(widths)} to {max(widths)} cells, "
            "and none names a known column. Save the table alone, as CSV with one line "
            "of names and one row per measured configuration."
        )


def _cut(path: Path, line: int, cells: list[str], width: int, hint: str) -> Record:
    if len(cells) == width or (len(cells) > width and not any(cells[width:])):
        return line, cells[:width]
    raise SpecError(
        f"{path}, line {line} has {counted(len(cells), 'cell')} but the header has "
        f"{width}. Give every row one cell per column; quote text, and numbers such as "
        f'"1,024", that contain commas.{hint}'
    )


def _kept(
    path: Path, line: int, names: Sequence[str], rows: Sequence[Record]
) -> list[int]:
    """Return the columns that count: unnamed indices and equal ones do not."""
    where = f"{path}, line {line}" if line else str(path)
    kept: list[int] = []
    for at, name in enumerate(names):
        first = names.index(name)
        if not name and _says_nothing([cells[at] for _, cells in rows]):
            continue
        if not name or not name.isprintable():
            raise SpecError(
                f"{where}: column {at + 1} has the name {shown(name)}. Give every "
                "column a printable name."
            )
        if first == at:
            kept.append(at)
        elif any(cells[at] != cells[first] for _, cells in rows):
            raise SpecError(
                f"{where}: the column {shown(name)} stands there twice, as number "
                f"{first + 1} and {at + 1}, with unlike cells. Remove or rename one of "
                "them."
            )
    return kept


def _says_nothing(cells: Sequence[str]) -> bool:
    """Whether the cells are empty, or count the rows from 0 or 1."""
    counts = (range(len(cells)), range(1, len(cells) + 1))
    return not any(cells) or any(list(map(str, each)) == [*cells] for each in counts)

"""Finding the names of the columns above the rows of a foreign table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.records.tables.words import shown

Record = tuple[int, list[str]]
"""The first line of a record, and its cells."""

_NUMBER = re.compile(r"[+-]?[\d.,' ]*\d[\d.,' ]*%?", re.ASCII)
_SPACE = re.compile(r"\s*[\n\r]\s*")  # a wrapped heading of a spreadsheet
_MOST_TITLES = 10


def named(
    path: Path, records: Sequence[Record]
) -> tuple[tuple[str, ...], list[Record]]:
    """Return the names of the columns, and the records below them, of equal width.

    Raises
    ------
    SpecError
        If a record is wider or narrower than the header, or a name is missing or
        stands there twice over unlike cells.
    """
    at = _header_at(records)
    line, header = records[at]
    body = records[at + 1 :]
    names = [_SPACE.sub(" ", name) for name in _below_groups(records, at)]
    width = max((n for n, name in enumerate(names, 1) if name), default=len(names))
    if any(any(cells[width:]) for _, cells in body if len(cells) == len(header)):
        width = len(names)
    names = names[:width]
    rows = [_cut(path, number, cells, width) for number, cells in body]
    kept = _kept(path, line, names, rows)
    if len(kept) < width:
        rows = [(number, [cells[at] for at in kept]) for number, cells in rows]
    return tuple(names[at] for at in kept), rows


def _header_at(records: Sequence[Record]) -> int:
    """Return which record names the columns: the first, below titles and groups.

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


def _cut(path: Path, line: int, cells: list[str], width: int) -> Record:
    if len(cells) == width or (len(cells) > width and not any(cells[width:])):
        return line, cells[:width]
    raise SpecError(
        f"{path}, line {line} has {len(cells)} cells but the header has {width}. Give "
        "every row one cell per column; quote text, and numbers such as "
        '"1,024", that contain commas.'
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

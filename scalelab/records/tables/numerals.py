"""How a foreign table writes numbers: decimal sign, thousands, missing values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from scalelab.errors import SpecError
from scalelab.records.tables.words import shown

_SPACES = re.compile("[\u00a0\u2009\u202f']")
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d{3}(\D|$))")
_DECIMAL_POINT = re.compile(
    r"[+-]?(0\.\d+|\d+\.(\d{1,2}|\d{4,})|\d{4,}\.\d+|\d{1,3}(,\d{3})+\.\d*"
    r"|\d{1,3}(,\d{3}){2,})"
)
_DECIMAL_COMMA = re.compile(
    r"[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+|\d{1,3}(\.\d{3})+,\d+"
    r"|\d{1,3}(\.\d{3}){2,})"
)
_UNCLEAR_COMMA = re.compile(r"[+-]?\d{1,3},\d{3}")
_UNCLEAR_POINT = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_HUNDREDS = re.compile(r"[1-9]\d\d")
_SHARE = re.compile(r"[+-]?0\.\d+")
_ANY = re.compile(r"[+-]?\d[\d.]*(,\d+)?")
_WITHOUT_COMMAS = (";", "\t", "|")
"""Separators of tables of which some have decimal commas."""
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(?![\d,])")
_GROUPED_BY_POINTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(?![\d.])")

MISSING = frozenset(
    {
        *("", "-", "--", "\u2013", "\u2014", "?", "na", "n/a", "n.a.", "#n/a", "nan"),
        *("null", "none", "<na>", "tbd", "unknown"),
    }
)
"""What a cell of numbers holds where there is none, in small letters."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers as text."""

    name: str
    cells: Mapping[str, int]
    is_read: bool = True
    is_whole: bool = False
    is_speed: bool = False

    def first(self, pattern: re.Pattern[str]) -> _Cell | None:
        """Return the first cell with such a number; what follows may be its unit."""
        for text, line in self.cells.items():
            word = _word(text)
            if pattern.fullmatch(word):
                return _Cell(self.name, line, word)
        return None

    @property
    def has_only_numbers(self) -> bool:
        """Whether every cell that is filled begins with one number."""
        filled = (text for text in self.cells if not is_missing(text))
        return all(_ANY.fullmatch(_word(text)) for text in filled)


@dataclass(frozen=True, slots=True)
class _Cell:
    column: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line} has {shown(self.text)}"


@dataclass(frozen=True, slots=True)
class Numerals:
    """How a table writes numbers.

    Parameters
    ----------
    because
        What tells how it is read; empty where nothing does.
    """

    has_decimal_comma: bool = False
    told: str = ""
    because: str = ""

    @classmethod
    def of(cls, path: object, separator: str, columns: Sequence[NumberColumn]) -> Self:
        """Tell from the columns of numbers.

        Where only cells like ``1,024`` could tell, semicolons between the columns mean
        that the comma is the decimal sign. Where only cells like ``1.024`` could, other
        cells tell that the point stands between thousands; never in Parquet, and not
        between commas.
        """
        read = [column for column in columns if column.is_read]
        comma = _first(_DECIMAL_COMMA, read)
        point = _first(_DECIMAL_POINT, read)
        if comma and point:
            raise SpecError(
                f"{path}: {comma} with a decimal comma and {point} with a decimal "
                "point. Write all numbers in one way."
            )
        unclear = _first(_UNCLEAR_POINT, read)
        if comma:
            return cls(True, unclear.text if unclear else "", str(comma))
        if point:
            return cls()
        if separator not in _WITHOUT_COMMAS:
            unclear = None
        if unclear and (because := _thousands_by_point(columns)):
            return cls(True, unclear.text, because)
        if by_comma := _first(_UNCLEAR_COMMA, read):
            return cls(separator == ";", by_comma.text)
        if unclear is None:
            return cls()
        share = _first(_SHARE, [each for each in columns if each.has_only_numbers])
        if separator == ";" and share is None:
            _refuse_unclear(path, unclear)
        return cls(False, unclear.text, str(share or ""))

    @property
    def notes(self) -> tuple[str, ...]:
        """How a cell was read that may be read in two ways.

        >>> Numerals(told="1,024").notes[0].partition(": ")[0]
        "'1,024' was read as 1024"
        """
        if not self.told:
            return ()
        read = f"{shown(self.told)} was read as {self.plain(self.told)}: "
        if self.because:
            return (f"{read}{self.because}.",)
        sign, alike = ("comma", "1,234") if "," in self.told else ("point", "1.234")
        is_decimal = self.has_decimal_comma == (sign == "comma")
        other = "1234" if is_decimal else "1.234"
        return (
            f"{read}no number of the table tells whether its {sign}s are decimal "
            f"signs. Write {other} for {alike} if that is wrong.",
        )

    def plain(self, text: str) -> str:
        """Write a number with a decimal point and without signs between thousands.

        >>> Numerals(True).plain("1.024,5"), Numerals().plain("1,024.5")
        ('1024.5', '1024.5')
        """
        if text.isdigit():
            return text
        text = _BETWEEN_DIGITS.sub("", _SPACES.sub("", text))
        if self.has_decimal_comma:
            if _GROUPED_BY_POINTS.match(text):
                text = text.replace(".", "")
            return text.replace(",", ".", 1)
        if _GROUPED.match(text):
            return text.replace(",", "")
        return text


def _word(text: str) -> str:
    return (text.split() or [""])[0].removesuffix("%")


def _first(pattern: re.Pattern[str], columns: Sequence[NumberColumn]) -> _Cell | None:
    return next(filter(None, (column.first(pattern) for column in columns)), None)


def _thousands_by_point(columns: Sequence[NumberColumn]) -> str:
    """Return what tells that points stand between thousands; empty if nothing does."""
    for column in columns:
        if not column.is_read:
            comma = column.first(_DECIMAL_COMMA)
            if comma and column.has_only_numbers:
                return str(comma)
        elif not column.first(_UNCLEAR_POINT):
            continue
        elif column.is_whole:
            return f"the column {shown(column.name)} holds whole numbers"
        elif column.is_speed and (hundreds := column.first(_HUNDREDS)):
            return f"{hundreds}, without a point, in the same column"
    return ""


def _refuse_unclear(path: object, cell: _Cell) -> NoReturn:
    raise SpecError(
        f"{path}, line {cell.line}, column {shown(cell.column)}: {shown(cell.text)} is "
        f"{cell.text.replace('.', '')} if its point stands between thousands, else "
        f"{cell.text}; no number of the table tells which. Write all numbers of the "
        f"table without points between thousands ({cell.text.replace('.', '')}), or "
        f"this one with another number of decimals ({cell.text}0)."
    )


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing("N/A"), is_missing("0")
    (True, False)
    """
    return text.lower() in MISSING

"""How a foreign table writes numbers: decimal sign, thousands, missing values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from scalelab.errors import SpecError
from scalelab.records.tables.words import shown

_SPACES = re.compile("[\u00a0\u2009\u202f']")
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d{3}(\D|$))")
_THOUSANDS_BY_COMMA = re.compile(r"[+-]?(\d{1,3}(,\d{3})+\.\d*|\d{1,3}(,\d{3}){2,})")
_DECIMAL_POINT = re.compile(r"[+-]?(0\.\d+|\d+\.(\d{1,2}|\d{4,})|\d{4,}\.\d+)")
_DECIMAL_COMMA = re.compile(
    r"[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+|\d{1,3}(\.\d{3})+,\d+"
    r"|\d{1,3}(\.\d{3}){2,})"
)
_UNCLEAR_COMMA = re.compile(r"[+-]?\d{1,3},\d{3}")
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
class Numerals:
    """How a table writes numbers.

    Parameters
    ----------
    has_decimal_comma
        ``1.024,5`` is a thousand and twenty-four and a half, not ``1,024.5``.
    guessed
        The first cell like ``1,024``, where no other cell tells what its comma is.
    """

    has_decimal_comma: bool = False
    guessed: str = ""

    @classmethod
    def of(cls, path: object, separator: str, cells: Iterable[tuple[int, str]]) -> Self:
        """Tell from the cells of numbers, each with its line.

        Where only cells like ``1,024`` could tell, semicolons between the columns mean
        that the comma is the decimal sign.

        Raises
        ------
        SpecError
            If some cells have a decimal comma and others a decimal point.
        """
        point: tuple[int, str] | None = None
        comma: tuple[int, str] | None = None
        unclear = ""
        for line, text in cells:
            if "," not in text and "." not in text:
                continue
            first, *_ = text.split() or [""]
            if _DECIMAL_COMMA.fullmatch(first):
                comma = comma or (line, text)
            elif _THOUSANDS_BY_COMMA.fullmatch(first) or _DECIMAL_POINT.fullmatch(
                first
            ):
                point = point or (line, text)
            if _UNCLEAR_COMMA.fullmatch(first):
                unclear = unclear or first
        if comma and point:
            raise SpecError(
                f"{path}: line {comma[0]} has {shown(comma[1])} with a decimal comma "
                f"and line {point[0]} has {shown(point[1])} with a decimal point. "
                "Write all numbers in one way."
            )
        if comma or point or not unclear:
            return cls(bool(comma))
        return cls(separator == ";", guessed=unclear)

    @property
    def notes(self) -> tuple[str, ...]:
        """How a cell was read that may be read in two ways.

        >>> Numerals(guessed="1,024").notes[0].partition(": ")[0]
        "'1,024' was read as 1024"
        """
        if not self.guessed:
            return ()
        other = "1234" if self.has_decimal_comma else "1.234"
        return (
            f"{shown(self.guessed)} was read as {self.plain(self.guessed)}: no number "
            f"of the table tells whether its commas are decimal signs. Write {other} "
            "for 1,234 if that is wrong.",
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


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing("N/A"), is_missing("0")
    (True, False)
    """
    return text.lower() in MISSING

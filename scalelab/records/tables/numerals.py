"""How a foreign table writes numbers: decimal sign, thousands, missing values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown

_SPACES = re.compile("[\u00a0\u2009\u202f']")
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d{3}(\D|$))")


def _decimal(sign: str, other: str) -> re.Pattern[str]:
    """Match numbers that show that a sign is decimal and the other one is not."""
    return re.compile(
        rf"[+-]?(0{sign}\d+|\d+{sign}(\d{{1,2}}|\d{{4,}})|\d{{4,}}{sign}\d+"
        rf"|\d{{1,3}}({other}\d{{3}})+{sign}\d+|\d{{1,3}}({other}\d{{3}}){{2,}})"
    )


_DECIMALS = {".": _decimal(r"\.", ","), ",": _decimal(",", r"\.")}
_UNCLEAR = {
    ".": re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2},\d{3}"),
}
_GROUPED = {
    ".": re.compile(r"[+-]?\d{1,3}(\.\d{3})+(?![\d.])"),
    ",": re.compile(r"[+-]?\d{1,3}(,\d{3})+(?![\d,])"),
}
_OTHER = {".": ",", ",": "."}

MISSING = frozenset(
    "- -- \u2013 \u2014 ? na n/a n.a. #n/a nan null none <na> tbd unknown".split()
) | {""}
"""What a cell of numbers holds where there is none, in small letters."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers: its different cells, each with the first of its lines."""

    name: str
    cells: Mapping[str, int]
    is_whole: bool


def decimal_sign(
    path: Path, separator: str, columns: Iterable[NumberColumn]
) -> tuple[str, str]:
    """Return the decimal sign of a table's numbers, and a cell that tells it.

    ``0,5`` tells it, and ``1,024`` in a column of whole numbers. The point of ``1.024``
    is a decimal one between commas and in Parquet.
    """
    told: dict[str, str] = {}
    unclear = None
    looked_at = ",." if separator and separator != "," else ","
    for column in columns:
        for text, line in column.cells.items():
            word = (text.split() or [""])[0].removesuffix("%")
            for sign, pattern in _DECIMALS.items():
                if pattern.fullmatch(word):
                    told.setdefault(sign, f"line {line} has {shown(word)}")
            for sign in looked_at:
                if not _UNCLEAR[sign].fullmatch(word):
                    continue
                if column.is_whole:
                    told.setdefault(
                        _OTHER[sign],
                        f"line {line} has {shown(word)} in the column "
                        f"{shown(column.name)} of whole numbers",
                    )
                unclear = unclear or (sign, word, column.name, line)
    if len(told) > 1:
        raise SpecError(
            f"{path}: {told[',']}, with a decimal comma, and {told['.']}, with a "
            "decimal point. Write all numbers in one way, or say which sign is the "
            "decimal one (--decimal . or --decimal ,)."
        )
    if told:
        return next(iter(told.items()))
    if unclear is None:
        return ".", ""
    sign, word, name, line = unclear
    noun, digits = "comma" if sign == "," else "point", word.replace(sign, "")
    raise SpecError(
        f"{path}, line {line}, column {shown(name)}: {shown(word)} is {digits} if its "
        f"{noun} stands between thousands, else {word.replace(',', '.')}; no number of "
        f"the table tells which. Say --decimal {_OTHER[sign]} for {digits}, or "
        f"--decimal {sign} for {word.replace(',', '.')}."
    )


def plain_number(text: str, decimal: str) -> str:
    """Write a number with a decimal point and without signs between thousands.

    >>> plain_number("1.024,5", ","), plain_number("1,024.5", ".")
    ('1024.5', '1024.5')
    """
    if text.isdigit():
        return text
    text = _BETWEEN_DIGITS.sub("", _SPACES.sub("", text))
    if _GROUPED[_OTHER[decimal]].match(text):
        text = text.replace(_OTHER[decimal], "")
    return text.replace(",", ".", 1) if decimal == "," else text


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing("N/A"), is_missing("0")
    (True, False)
    """
    return text.lower() in MISSING

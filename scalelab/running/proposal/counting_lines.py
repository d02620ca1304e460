"""An expression for lines that count up to a length, made from a sample of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    STEPS_IN_ALL,
)

_COUNT = re.compile(r"(\d+)( */ *)(\d+)")
_PARTS = re.compile(r"(\s*\d+(?:\.\d+)?|\s+)")
_LONGEST_BEFORE = 80
_MOST_AT_A_LENGTH = 0.9  # of the lines; an evaluation may count up to another one


class _Line(NamedTuple):
    """A line of a kind: the numbers before its count, the count and its length."""

    before: tuple[float, ...]
    done: int
    length: int


def counting_expression(lines: Sequence[str]) -> str | None:
    r"""Return an expression for the lines that count the batches of epochs, or steps.

    Of all kinds of lines, alike but for numbers and spaces, it is the one with most
    lines that count up to one length. None: there is none.

    >>> lines = ["1: [ 3/ 9]", "1: [ 6/ 9]", "1: [ 9/ 9]", "2: [ 3/ 9]"]
    >>> counting_expression(lines)
    ' *(?P<epoch>\\d+): +\\[ *(?P<batch_of_epoch>\\d+) */ *(?P<batches_of_epoch>\\d+)'
    """
    kinds: dict[tuple[str, ...], list[_Line]] = {}
    for line in lines:
        for found in _COUNT.finditer(line[: 2 * _LONGEST_BEFORE]):
            texts = _PARTS.split(line[: found.start()].rstrip())
            numbers = tuple(float(each) for each in texts[1::2] if each.strip())
            kind = tuple(_expression_of(each) for each in texts)
            row = _Line(numbers, int(found[1]), int(found[3]))
            kinds.setdefault(kind, []).append(row)
    counting = {kind: rows for kind, rows in kinds.items() if _counts(rows)}
    if not counting:
        return None
    kind = max(counting, key=lambda each: len(counting[each]))
    return _expression(kind, counting[kind])


def _counts(rows: Sequence[_Line]) -> bool:
    """Tell whether lines count up to a length, again and again or once."""
    length, times = Counter(row.length for row in rows).most_common(1)[0]
    counts = [row.done for row in rows if row.length == length]
    rises = sum(one < other for one, other in pairwise(counts))
    falls = sum(one > other for one, other in pairwise(counts))
    is_alike = times >= _MOST_AT_A_LENGTH * len(rows)
    return is_alike and max(counts) <= length and rises > falls


def _expression(kind: tuple[str, ...], rows: Sequence[_Line]) -> str:
    begins = [one.done > other.done for one, other in pairwise(rows)]
    epochs = [i for i in range(len(rows[0].before)) if _is_epoch(rows, begins, i)]
    position, parts = -1, []
    for part in kind:
        position += r"\d+" in part
        is_named = part.endswith(r"\d+") and epochs[:1] == [position]
        parts.append(part.replace(r"\d+", rf"(?P<{EPOCH}>\d+)") if is_named else part)
    names = (
        (BATCH_OF_EPOCH, BATCHES_OF_EPOCH) if any(begins) else ("step", STEPS_IN_ALL)
    )
    count, length = names
    return rf"{''.join(parts)} *(?P<{count}>\d+) */ *(?P<{length}>\d+)"


def _is_epoch(rows: Sequence[_Line], begins: Sequence[bool], position: int) -> bool:
    """Tell whether a number rises exactly where the count begins anew."""
    numbers = [row.before[position] for row in rows]
    return any(begins) and begins == [one < two for one, two in pairwise(numbers)]


def _expression_of(part: str) -> str:
    """Return what matches a part of a line, whatever its numbers and its padding."""
    if part and part[-1].isdigit():
        return r" *\d+(?:\.\d+)?" if "." in part else r" *\d+"
    return r" +" if part.isspace() else re.escape(part)

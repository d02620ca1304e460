"""Reports of a command: one for each line of JSON, CSV or output that has a step."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from scalelab.errors import SpecError
from scalelab.launch.command.witness.own_rates import OwnRate

STEP, SAMPLES, TIME = "step", "samples", "t"
_MAX_COUNT = 10**15
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_OWN = (STEP, SAMPLES, TIME)
# What a line may say behind a number of steps: 16/6400.
_TOTAL = re.compile(r" */ *(\d+)")
# Names of columns that users and frameworks give to what counts.
_USUAL = {
    STEP: "step global_step steps num_steps train_step training_step optimizer_step "
    "iteration iterations iter iters update updates trainer/global_step",
    SAMPLES: "samples num_samples samples_seen seen_samples consumed_samples "
    "total_samples images_seen",
    TIME: "t",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A count as a line has it, before it is made optimiser steps.

    Parameters
    ----------
    value, total
        The count, and what the line says it counts up to; None: nothing.
    """

    name: str
    value: int
    total: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The report of a command in one line.

    Parameters
    ----------
    step
        Optimiser steps done; None on a line that only adds metrics to the last step.
    samples
        Training samples of all ranks so far; None where the line has none.
    t
        Seconds by the command's own clock; None where the line has none.
    metrics
        Every other finite number on the line, by name.
    is_evaluation
        An evaluation wrote the line. Then it reports no step: ``step`` only says when
        the metrics were measured.
    count
        What the steps were made of; None: of nothing else, and up to nothing.
    rates
        The program's own rates on the line.
    """

    step: int | None
    samples: int | None = None
    t: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_evaluation: bool = False
    count: Count | None = None
    rates: tuple[OwnRate, ...] = ()


class LineReader(Protocol):
    """Reads reports out of lines.

    Attributes
    ----------
    expectation
        What a line should be, to follow the words "no line was".
    """

    expectation: str

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        ...


class JsonLines:
    """Reads lines that are JSON objects, such as ``{"step": 3, "samples": 96}``.

    >>> found = JsonLines().read(b'{"step": 3, "samples": 96, "loss": 0.5, "a": "x"}')
    >>> found.step, found.samples, found.metrics
    (3, 96, {'loss': 0.5})
    """

    expectation = 'a JSON object such as {"step": 10, "samples": 640}'

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for anything but a report."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict):
            return None
        return _report({name: _number(value) for name, value in values.items()})


class RegexLines:
    r"""Reads the named groups of regular expressions out of lines of output.

    Every expression is searched in every line; what they find is one report.

    Parameters
    ----------
    patterns
        Regular expressions; at least one has a group that counts.

    Examples
    --------
    >>> lines = RegexLines((r"step (?P<step>[\d,]+)", r"loss (?P<loss>\S+)"))
    >>> found = lines.read(b"step 1,200 | loss 0.5")
    >>> found.step, found.metrics
    (1200, {'loss': 0.5})
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        named = ", ".join(map(repr, patterns))
        self.expectation = f"matched by metrics.regex {named}"

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that matches nothing."""
        text = line.decode(errors="replace")
        found: dict[str, float | None] = {}
        total: int | None = None
        for pattern in self._patterns:
            if match := pattern.search(text):
                for name, value in match.groupdict().items():
                    if value is not None:
                        found[name] = _parsed(value)
                        behind = name == STEP and _TOTAL.match(text, match.end(name))
                        total = int(behind[1]) if behind else total
        return _report(found, total)


class CsvLines:
    """Reads the rows of a CSV file, which begins with the names of its columns.

    A file that is written anew, as when a column is added, may hold the rows again.

    Examples
    --------
    >>> lines = CsvLines({"step": "n"})
    >>> [lines.read(line) for line in (b"n,loss", b"3,", b"3,0.5")][-1].metrics
    {'loss': 0.5}
    """

    expectation = "a row with a number of steps below a header"

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._given = columns
        self._names: list[str] = []
        self._delimiter = ","
        self._last = -1
        self._is_again = False

    def read(self, line: bytes) -> Report | None:
        """Return what the row reports; None for a header and for an empty row."""
        text = line.decode("utf-8-sig", errors="replace")
        cells = self._cells(text)
        has_number = any(_parsed(cell) is not None for cell in cells)
        if not self._names or (any(cells) and not has_number):
            self._take_header(text)
            return None
        pairs = zip(self._names, map(_parsed, cells), strict=False)
        report = _report({name: value for name, value in pairs if name})
        if report is None:
            return None
        at = report.samples if report.step is None else report.step
        self._is_again = self._is_again and (at is None or at <= self._last)
        if self._is_again:
            return None
        self._last = self._last if at is None else at
        return report

    def _cells(self, text: str) -> list[str]:
        return next(csv.reader([text], delimiter=self._delimiter), [])

    def _take_header(self, text: str) -> None:
        self._is_again = bool(self._names)
        self._delimiter = max(",;\t", key=text.count)
        columns = [each.strip() for each in self._cells(text)]
        if missing := [each for each in self._given.values() if each not in columns]:
            raise SpecError(
                f"metrics.columns names {missing[0]!r}, and the header of metrics.csv "
                f"has: {', '.join(columns)[:300]}. Name one of these."
            )
        usual = {name: _usual(columns, words) for name, words in _USUAL.items()}
        names = {column: name for name, column in {**usual, **self._given}.items()}
        # A column that only is called like what counts is not read.
        self._names = [names.get(c, "" if c in _USUAL else c) for c in columns]
        if not {STEP, SAMPLES} & {*self._names}:
            raise SpecError(
                "no column of metrics.csv counts steps or samples by its name; it has: "
                f"{', '.join(columns)[:300]}. Name the one that counts optimiser "
                "steps: metrics: {csv: ..., columns: {step: NAME}}."
            )


class EvaluationLines:
    r"""Tells lines of an evaluation from those that report steps.

    Parameters
    ----------
    patterns
        Regular expressions; one of them occurs in every line of an evaluation.

    Examples
    --------
    >>> reader = RegexLines((r"iter (?P<step>\d+)", r"val loss (?P<val_loss>\S+)"))
    >>> lines = EvaluationLines(reader, ("val loss",))
    >>> found = lines.read(b"step 250: train loss 2.0, val loss 2.1")
    >>> found.is_evaluation, found.step, found.metrics
    (True, None, {'val_loss': 2.1})
    """

    def __init__(self, reader: LineReader, patterns: tuple[str, ...]) -> None:
        self._reader = reader
        self._patterns = [re.compile(pattern) for pattern in patterns]
        named = ", ".join(map(repr, patterns))
        self.expectation = (
            f"{reader.expectation} without being one of an evaluation "
            f"(metrics.evaluation {named})"
        )

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        report, text = self._reader.read(line), line.decode(errors="replace")
        if not any(pattern.search(text) for pattern in self._patterns):
            return report
        return replace(report or Report(step=None), is_evaluation=True)


def _report(
    values: Mapping[str, float | None], total: int | None = None
) -> Report | None:
    metrics = {
        name: value
        for name, value in values.items()
        if value is not None and math.isfinite(value) and name not in _OWN
    }
    step, samples = whole(values.get(STEP)), whole(values.get(SAMPLES))
    t = values.get(TIME)
    if step is None and samples is None and not metrics:
        return None
    return Report(
        step=step,
        samples=samples,
        t=t if t is not None and math.isfinite(t) else None,
        metrics=metrics,
        count=Count(name=STEP, value=step, total=total)
        if step is not None and total is not None
        else None,
    )


def _usual(columns: Sequence[str], words: str) -> str | None:
    """Return the column that is called by the first of some words; None: none is."""
    found = {column.lower(): column for column in reversed(columns)}
    return next((found[word] for word in words.split() if word in found), None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) <= _MAX_COUNT else None


def _parsed(text: str) -> float | None:
    text = text.strip()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def whole(value: float | None) -> int | None:
    """Return the value as a count; None where it is not a whole number in range."""
    if value is None or not 0 <= value <= _MAX_COUNT or value != int(value):
        return None
    return int(value)

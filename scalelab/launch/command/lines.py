"""Reports of a command: one for each line of JSON or of output that has a step."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    STEP_OF_EPOCH,
    STEPS_IN_ALL,
    STEPS_OF_EPOCH,
    MetricsSource,
)

_MAX_COUNT = 10**15
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_OWN = ("step", "samples", "t")
_OF_EPOCH = (BATCH_OF_EPOCH, STEP_OF_EPOCH)
_LENGTHS = (BATCHES_OF_EPOCH, STEPS_OF_EPOCH, STEPS_IN_ALL)
_COUNTS = (*_OF_EPOCH, *_LENGTHS)


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
    """

    step: int | None
    samples: int | None = None
    t: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_evaluation: bool = False


class LineReader(Protocol):
    """Reads reports out of lines."""

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        ...

    def expectation(self) -> str:
        """Return what a line should be, to follow the words "no line was"."""
        ...


def line_reader(
    source: MetricsSource, gradient_accumulation_steps: int = 1
) -> LineReader:
    """Return the reader of a metrics source, for the lines of one attempt in order.

    Parameters
    ----------
    source
        Where the command reports its steps.
    gradient_accumulation_steps
        Forward passes of one rank per optimiser step, at least 1.
    """
    each = RegexLines(source.regex) if source.regex else JsonLines()
    reader = CountedLines(each, gradient_accumulation_steps)
    return EvaluationLines(reader, source.evaluation) if source.evaluation else reader


class JsonLines:
    """Reads lines that are JSON objects, such as ``{"step": 3, "samples": 96}``.

    >>> found = JsonLines().read(b'{"step": 3, "samples": 96, "loss": 0.5, "a": "x"}')
    >>> found.step, found.samples, found.metrics
    (3, 96, {'loss': 0.5})
    """

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for anything but a report."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict):
            return None
        return _report({name: _number(value) for name, value in values.items()})

    def expectation(self) -> str:
        """Return what a line should be, to follow the words "no line was"."""
        return 'a JSON object such as {"step": 10, "samples": 640}'


class RegexLines:
    r"""Reads the named groups of regular expressions out of lines of output.

    Every expression is searched in every line; what they find is one report.

    Parameters
    ----------
    patterns
        Regular expressions; at least one has a group named ``step``.

    Examples
    --------
    >>> lines = RegexLines((r"step (?P<step>[\d,]+)", r"loss (?P<loss>\S+)"))
    >>> found = lines.read(b"step 1,200 | loss 0.5")
    >>> found.step, found.metrics
    (1200, {'loss': 0.5})
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that matches nothing."""
        text = line.decode(errors="replace")
        found: dict[str, float | None] = {}
        for pattern in self._patterns:
            if match := pattern.search(text):
                for name, value in match.groupdict().items():
                    if value is not None:
                        found[name] = _parsed(value)
        return _report(found)

    def expectation(self) -> str:
        """Return what a line should be, to follow the words "no line was"."""
        patterns = ", ".join(repr(pattern.pattern) for pattern in self._patterns)
        return f"matched by metrics.regex {patterns}"


class CountedLines:
    r"""Counts steps where lines count the batches or the steps of each epoch anew.

    An epoch begins where they count from lower on, or where the number of the epoch, if
    lines say it, is a higher one. A line that says another length than the first one,
    of the epoch or of the training, is one of an evaluation, which draws such lines
    too.

    Parameters
    ----------
    reader
        Reads reports out of lines.
    gradient_accumulation_steps
        Batches per optimiser step, at least 1.

    Examples
    --------
    >>> pattern = r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+) "
    >>> lines = CountedLines(RegexLines((pattern,)), 2)
    >>> [lines.read(line).step for line in (b"8/10 ", b"10/10 ", b"2/10 ")]
    [4, 5, 6]
    """

    def __init__(self, reader: LineReader, gradient_accumulation_steps: int) -> None:
        self._reader = reader
        self._batches_per_step = gradient_accumulation_steps
        self._length: float | None = None
        self._epoch: int | None = None
        self._before = 0  # of the epochs before
        self._last = 0

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        report = self._reader.read(line)
        if report is None or not report.metrics.keys() & _COUNTS:
            return report
        found = report.metrics
        others = {name: found[name] for name in found if name not in _COUNTS}
        report = replace(report, metrics=others)
        length = next((found[name] for name in _LENGTHS if found.get(name)), None)
        self._length = self._length or length
        if length and length != self._length:
            return replace(report, step=None, is_evaluation=True)
        for name in _OF_EPOCH:
            if (count := _count(found.get(name))) is not None:
                steps = self._done_at(count, found.get(EPOCH))
                per_step = self._batches_per_step if name == BATCH_OF_EPOCH else 1
                return replace(report, step=steps // per_step)
        return report

    def expectation(self) -> str:
        """Return what a line should be, to follow the words "no line was"."""
        return self._reader.expectation()

    def _done_at(self, count: int, epoch: float | None) -> int:
        """Return what all epochs have done after a count of this one, from 1."""
        epoch = None if epoch is None else math.floor(epoch)
        is_next = epoch is not None and self._epoch is not None and epoch > self._epoch
        if count < self._last or is_next:
            # The end of an epoch may have no line.
            self._before += int(self._length or self._last)
        self._last, self._epoch = count, epoch
        return self._before + count


class EvaluationLines:
    r"""Tells lines of an evaluation from those that report steps.

    Parameters
    ----------
    reader
        Reads reports out of all lines.
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

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        report, text = self._reader.read(line), line.decode(errors="replace")
        if not any(pattern.search(text) for pattern in self._patterns):
            return report
        return replace(report or Report(step=None), is_evaluation=True)

    def expectation(self) -> str:
        """Return what a line should be, to follow the words "no line was"."""
        patterns = ", ".join(repr(pattern.pattern) for pattern in self._patterns)
        return (
            f"{self._reader.expectation()} without being one of an evaluation "
            f"(metrics.evaluation {patterns})"
        )


def _report(values: Mapping[str, float | None]) -> Report | None:
    metrics = {
        name: value
        for name, value in values.items()
        if value is not None and math.isfinite(value) and name not in _OWN
    }
    step, samples = _count(values.get("step")), _count(values.get("samples"))
    t = values.get("t")
    if step is None and not metrics:
        return None
    return Report(
        step=step,
        samples=samples,
        t=t if t is not None and math.isfinite(t) else None,
        metrics=metrics,
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) <= _MAX_COUNT else None


def _parsed(text: str) -> float | None:
    """Return a printed number, thousands grouped or not; None for other text."""
    text = text.strip()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def _count(value: float | None) -> int | None:
    """Return the value as a count; None where it is not a whole number in range."""
    if value is None or not 0 <= value <= _MAX_COUNT or value != int(value):
        return None
    return int(value)

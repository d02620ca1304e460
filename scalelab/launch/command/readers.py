"""The reader of a metrics source: what lines count is made optimiser steps."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from scalelab.errors import SpecError
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    SAMPLES_IN_EPOCH,
    SAMPLES_OF_EPOCH,
    STEP_OF_EPOCH,
    STEPS_IN_ALL,
    STEPS_OF_EPOCH,
    MetricsSource,
)
from scalelab.launch.command.lines import (
    SAMPLES,
    Count,
    CsvLines,
    EvaluationLines,
    JsonLines,
    LineReader,
    RegexLines,
    Report,
    whole,
)
from scalelab.launch.command.witness.own_rates import own_rates

_OF_EPOCH = (BATCH_OF_EPOCH, STEP_OF_EPOCH, SAMPLES_OF_EPOCH)
_LENGTHS = (BATCHES_OF_EPOCH, STEPS_OF_EPOCH, SAMPLES_IN_EPOCH, STEPS_IN_ALL)
_COUNTS = (*_OF_EPOCH, *_LENGTHS)
_MOST_OF_A_LINE = 2000
# Between the lines of steps, these show that a rate is not of the training.
_OF_OTHERS = re.compile(r"%\||eval|valid|\bval\b|test", re.IGNORECASE)


def line_reader(
    source: MetricsSource,
    gradient_accumulation_steps: int = 1,
    global_batch_size: int = 1,
) -> LineReader:
    """Return the reader of a metrics source, for the lines of one attempt in order."""
    reader: LineReader = JsonLines()
    if source.regex:
        reader = RegexLines(source.regex)
    elif source.tensorboard is not None:
        reader = _Scalars()
    elif source.csv is not None:
        reader = CsvLines(source.columns)
    reader = CountedLines(reader, gradient_accumulation_steps, global_batch_size)
    if source.evaluation:
        reader = EvaluationLines(reader, source.evaluation)
    return _RatedLines(reader)


class CountedLines:
    r"""Counts steps where lines count samples, or batches or steps of each epoch anew.

    An epoch begins where they count from lower on, or where the number of the epoch, if
    lines say it, is a higher one. A line that says another length than the first one,
    of the epoch or of the training, is one of an evaluation, which draws such lines
    too.

    Examples
    --------
    >>> pattern = r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+) "
    >>> lines = CountedLines(RegexLines((pattern,)), 2)
    >>> [lines.read(line).step for line in (b"8/10 ", b"10/10 ", b"2/10 ")]
    [4, 5, 6]
    >>> lines = CountedLines(RegexLines((r"(?P<samples_of_epoch>\d+)/",)), 1, 16)
    >>> [lines.read(line).step for line in (b"16/32 ", b"32/32 ", b"16/32")]
    [1, 2, 3]
    """

    def __init__(
        self,
        reader: LineReader,
        gradient_accumulation_steps: int,
        global_batch_size: int = 1,
    ) -> None:
        self._reader = reader
        self.expectation = reader.expectation
        self._batches_per_step = gradient_accumulation_steps
        self._samples_per_step = global_batch_size
        self._length: float | None = None
        self._epoch: int | None = None
        self._before = 0  # of the epochs before
        self._last: int | None = None
        self._has_steps = False

    def read(self, line: bytes) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        report = self._reader.read(line)
        if report is None:
            return None
        self._has_steps = self._has_steps or report.step is not None
        if report.metrics.keys() & _COUNTS:
            return self._counted(report)
        if report.step is None and report.samples is not None and not self._has_steps:
            step = self._steps_after(SAMPLES, report.samples, None)
            count = Count(name=SAMPLES, value=report.samples)
            return replace(report, step=step, count=count)
        return report

    def _counted(self, report: Report) -> Report:
        found = report.metrics
        others = {name: found[name] for name in found if name not in _COUNTS}
        report = replace(report, metrics=others)
        length = next((found[name] for name in _LENGTHS if found.get(name)), None)
        self._length = self._length or length
        if length and length != self._length:
            return replace(report, step=None, is_evaluation=True)
        total = whole(length)
        for name in _OF_EPOCH:
            if (value := whole(found.get(name))) is not None:
                step = self._steps_after(name, value, found.get(EPOCH))
                count = Count(name=name, value=value, total=total)
                return replace(report, step=step, count=count)
        if report.count is not None and total is not None:
            return replace(report, count=replace(report.count, total=total))
        return report

    def _steps_after(self, name: str, value: int, epoch: float | None) -> int | None:
        """Return the steps done after a count of this epoch; None where it is none.

        The last batch of an epoch may have fewer samples, and some programs multiply by
        them: then the count is lower, and no epoch begins.
        """
        is_samples = name in (SAMPLES, SAMPLES_OF_EPOCH)
        epoch = None if epoch is None else math.floor(epoch)
        is_next = epoch is not None and self._epoch is not None and epoch > self._epoch
        is_lower = self._last is not None and value < self._last
        if is_samples and is_lower and epoch is not None and not is_next:
            return None
        if is_lower or is_next:
            # The end of an epoch may have no line.
            length = int(self._length or self._last or 0)
            self._before += self._whole_steps(length) if is_samples else length
        elif is_samples and self._last is not None and value != self._length:
            self._check_rise(name, value - self._last)
        self._last, self._epoch = value, epoch
        done = self._before + value
        if is_samples:
            return self._whole_steps(done) // self._samples_per_step
        return done // (self._batches_per_step if name == BATCH_OF_EPOCH else 1)

    def _whole_steps(self, samples: int) -> int:
        """Return the samples of the steps that see so many, the last one full."""
        return -(-samples // self._samples_per_step) * self._samples_per_step

    def _check_rise(self, name: str, rise: int) -> None:
        # With accumulation a line may stand for a pass.
        if rise % (self._samples_per_step // self._batches_per_step):
            raise SpecError(
                f"{name} rose by {rise:,} between two lines, and one optimiser step "
                f"has global_batch_size={self._samples_per_step:,} samples. They are "
                "of all ranks: multiply those of one rank by their number. If batches "
                f"or steps are counted, name the group {BATCH_OF_EPOCH} or "
                f"{STEP_OF_EPOCH}."
            )


class _Scalars(JsonLines):
    expectation = "a scalar with its step"


class _RatedLines:
    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self.expectation = reader.expectation

    def read(self, line: bytes) -> Report | None:
        report = self._reader.read(line)
        if report is not None and report.is_evaluation:
            return report
        text = line[:_MOST_OF_A_LINE].decode(errors="replace")
        if report is None or report.step is None:
            rates = () if _OF_OTHERS.search(text) else own_rates(text)
            report = report or (Report(step=None) if rates else None)
        else:
            named = ", ".join(f"{name}: {of}" for name, of in report.metrics.items())
            rates = own_rates(f"{text} {named}")
        return replace(report, rates=rates) if report and rates else report

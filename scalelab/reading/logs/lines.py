"""Reports of a command: one for each line of JSON, CSV or output that has a step.

What lines count is made optimiser steps.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from scalelab.errors import SpecError
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    PERCENT_OF_EPOCH,
    SAMPLES_IN_EPOCH,
    SAMPLES_OF_EPOCH,
    SAMPLES_OF_RANK,
    STEP_OF_EPOCH,
    STEPS_IN_ALL,
    STEPS_OF_EPOCH,
    MetricsSource,
)
from scalelab.reading.logs.rates import OwnRate, own_rates
from scalelab.reading.vocabulary import FIELDS

STEP, SAMPLES, TIME = "step", "samples", "t"
_MAX_COUNT = 10**15
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_OWN = (STEP, SAMPLES, TIME)
_OF_EPOCH = (BATCH_OF_EPOCH, STEP_OF_EPOCH, SAMPLES_OF_EPOCH)
_LENGTHS = (BATCHES_OF_EPOCH, STEPS_OF_EPOCH, SAMPLES_IN_EPOCH, STEPS_IN_ALL)
_COUNTS = frozenset((*_OF_EPOCH, SAMPLES_OF_RANK, PERCENT_OF_EPOCH, *_LENGTHS))
_MOST_OF_A_LINE = 2000
# Between the lines of steps, these show that a rate is not of the training.
_OF_OTHERS = re.compile(r"%\||eval|valid|\bval\b|test", re.IGNORECASE)


# Made for each line of a log: a frozen one takes three times as long to make.
@dataclass(kw_only=True, slots=True)
class Report:
    """The report of a command in one line.

    ``step`` is None on a line that only adds metrics to the last step; of an evaluation
    it only says when the metrics were measured. ``samples`` are those of all ranks,
    ``t`` is seconds by the command's own clock. The steps may be ``of_samples``: made
    of samples that the line counts.
    """

    step: int | None
    samples: int | None = None
    t: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_evaluation: bool = False
    of_samples: bool = False
    rates: tuple[OwnRate, ...] = ()


def read_json(line: bytes) -> Report | None:
    """Return what a line reports that is a JSON object.

    >>> found = read_json(b'{"step": 3, "samples": 96, "loss": 0.5, "a": "x"}')
    >>> found.step, found.samples, found.metrics
    (3, 96, {'loss': 0.5})
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None

    if not isinstance(values, dict):
        return None

    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_COUNT)
    }
    return _report(numbers)


def read_groups(patterns: Iterable[re.Pattern[str]], line: bytes) -> Report | None:
    r"""Return what the named groups of regular expressions find in a line of output.

    Every expression is searched in every line; what they find is one report.

    >>> patterns = r"step (?P<step>[\d,]+)", r"loss (?P<loss>\S+)"
    >>> found = read_groups(map(re.compile, patterns), b"step 1,200 | loss 0.5")
    >>> found.step, found.metrics
    (1200, {'loss': 0.5})
    """
    text = line.decode(errors="replace")
    found: dict[str, float | None] = {}
    for pattern in patterns:
        if match := pattern.search(text):
            for name, value in match.groupdict().items():
                if value is not None:
                    found[name] = _parsed(value)
    return _report(found) if found else None


class CsvLines:
    """Reads the rows of a CSV file, which begins with the names of its columns.

    A file that is written anew, as when a column is added, may hold the rows again.

    Examples
    --------
    >>> lines = CsvLines({"step": "n"})
    >>> [lines.read(line) for line in (b"n,loss", b"3,", b"3,0.5")][-1].metrics
    {'loss': 0.5}
    """

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

        columns = [cell.strip() for cell in self._cells(text)]
        if missing := [name for name in self._given.values() if name not in columns]:
            raise SpecError(
                f"metrics.columns names {missing[0]!r}, and the header of metrics.csv "
                f"has: {', '.join(columns)[:300]}. Name one of these.",
                code="column_missing",
            )

        known = {column.lower(): column for column in reversed(columns)}
        usual = {
            name: next((known[word] for word in words if word in known), None)
            for name, words in FIELDS.items()
        }
        names = {column: name for name, column in {**usual, **self._given}.items()}
        # A column that only is called like what counts is not read.
        self._names = [names.get(c, "" if c in _OWN else c) for c in columns]

        if not {STEP, SAMPLES} & {*self._names}:
            raise SpecError(
                "no column of metrics.csv counts steps or samples by its name; it has: "
                f"{', '.join(columns)[:300]}. Name the one that counts optimiser "
                "steps: metrics: {csv: ..., columns: {step: NAME}}.",
                code="no_column_of_steps",
            )


def _report(values: Mapping[str, float | None]) -> Report | None:
    # a loss may be nan or inf, a count may not
    metrics = {
        name: value
        for name, value in values.items()
        if value is not None
        and (math.isfinite(value) or not (name in _COUNTS or name == EPOCH))
    }
    step, samples = _whole(metrics.pop(STEP, None)), _whole(metrics.pop(SAMPLES, None))
    t = metrics.pop(TIME, None)
    if step is None and samples is None and not metrics:
        return None

    if t is not None and not math.isfinite(t):
        t = None
    return Report(step=step, samples=samples, t=t, metrics=metrics)


def _parsed(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        is_grouped = _GROUPED.fullmatch(text.strip())
        return float(text.replace(",", "")) if is_grouped else None


def _whole(value: float | None) -> int | None:
    if value is None or not 0 <= value <= _MAX_COUNT or value != int(value):
        return None
    return int(value)


class ReportReader:
    r"""Reads what a command reports, from the lines of one attempt in order.

    An epoch begins where counts of an epoch begin from lower on, or where the number of
    the epoch, if lines say it, is a higher one. A line that says another length than
    the first one, of the epoch or of the training, is one of an evaluation, which draws
    such lines too. ``expectation`` says what a line should be, after "none was".

    Examples
    --------
    >>> from scalelab.experiment.program import MetricsSource
    >>> pattern = r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+) "
    >>> reader = ReportReader(MetricsSource(regex=(pattern,)), 2)
    >>> [reader.read(line).step for line in (b"8/10 ", b"10/10 ", b"2/10 ")]
    [4, 5, 6]
    >>> patterns = (r"iter (?P<step>\d+)", r"val loss (?P<val_loss>\S+)")
    >>> reader = ReportReader(MetricsSource(regex=patterns, evaluation=("val loss",)))
    >>> found = reader.read(b"step 250: train loss 2.0, val loss 2.1")
    >>> found.is_evaluation, found.step, found.metrics
    (True, None, {'val_loss': 2.1})
    """

    def __init__(
        self,
        source: MetricsSource,
        gradient_accumulation_steps: int = 1,
        global_batch_size: int = 1,
        data_parallel_size: int = 1,
    ) -> None:
        self._read: Callable[[bytes], Report | None] = read_json
        self.expectation = 'a JSON object such as {"step": 10, "samples": 640}'
        if source.regex:
            self._read = partial(read_groups, [*map(re.compile, source.regex)])
            named = ", ".join(f"'{pattern}'" for pattern in source.regex)
            self.expectation = f"matched by metrics.regex {named}"
        elif source.tensorboard is not None:
            self.expectation = "a scalar with its step"
        elif source.csv is not None:
            self._read = CsvLines(source.columns).read
            self.expectation = "a row with a number of steps below a header"

        if source.evaluation:
            named = ", ".join(f"'{pattern}'" for pattern in source.evaluation)
            self.expectation += (
                f" without being one of an evaluation (metrics.evaluation {named})"
            )

        self._of_evaluations = [re.compile(pattern) for pattern in source.evaluation]
        self._num_ranks = data_parallel_size
        self._length: float | None = None
        self._counter = _EpochCounter(gradient_accumulation_steps, global_batch_size)
        self._has_steps = False

    def read(self, line: bytes, *, reads_rates: bool = True) -> Report | None:
        """Return what the line reports; None for a line that reports nothing."""
        report = self._read(line)
        report = report and self._counted(report)
        if self._of_evaluations:
            text = line.decode(errors="replace")
            if any(pattern.search(text) for pattern in self._of_evaluations):
                report = replace(report or Report(step=None), is_evaluation=True)

        if (report is not None and report.is_evaluation) or not reads_rates:
            return report

        text = line[:_MOST_OF_A_LINE].decode(errors="replace")
        if report is None or report.step is None:
            rates = () if _OF_OTHERS.search(text) else own_rates(text)
        else:
            named = (f"{name}: {value}" for name, value in report.metrics.items())
            rates = own_rates(f"{text} {', '.join(named)}")

        return replace(report or Report(step=None), rates=rates) if rates else report

    def _counted(self, report: Report) -> Report:
        """Return a report with the steps that its counts come to."""
        self._has_steps = self._has_steps or report.step is not None
        found = report.metrics
        if _COUNTS.isdisjoint(found):
            return report if self._has_steps else self._of_samples(report)

        if SAMPLES_OF_RANK in found:
            of_all_ranks = found[SAMPLES_OF_RANK] * self._num_ranks
            found = {**found, SAMPLES_OF_EPOCH: of_all_ranks}

        metrics = {name: found[name] for name in found if name not in _COUNTS}
        report = replace(report, metrics=metrics)

        length = next((found[name] for name in _LENGTHS if found.get(name)), None)
        self._length = self._length or length

        if length and length != self._length:
            return replace(report, step=None, is_evaluation=True)

        if {SAMPLES_OF_EPOCH, SAMPLES_IN_EPOCH, PERCENT_OF_EPOCH} <= found.keys():
            self._counter.check_share(
                found[SAMPLES_OF_EPOCH],
                found[SAMPLES_IN_EPOCH],
                found[PERCENT_OF_EPOCH],
                self._num_ranks,
            )

        for name in _OF_EPOCH:
            if (value := _whole(found.get(name))) is not None:
                step = self._counter.steps_after(
                    name, value, found.get(EPOCH), self._length
                )
                return replace(report, step=step, of_samples=name == SAMPLES_OF_EPOCH)

        return report

    def _of_samples(self, report: Report) -> Report:
        if report.samples is None:
            return report
        step = self._counter.steps_after(SAMPLES, report.samples, None, None)
        return replace(report, step=step, of_samples=True)


class _EpochCounter:
    """Makes optimiser steps of what lines count in epoch after epoch."""

    def __init__(self, passes_per_step: int, samples_per_step: int) -> None:
        self._passes_per_step = passes_per_step
        self._samples_per_step = samples_per_step
        self._interval = 0  # the largest rise between two lines of an epoch
        self._epoch: int | None = None
        self._before = 0  # of the epochs before
        self._last: int | None = None

    def steps_after(
        self, name: str, value: int, epoch: float | None, length: float | None
    ) -> int | None:
        """Return the steps done after a count of this epoch; None where it is none.

        The last batch of an epoch may have fewer samples, and some programs multiply by
        them: then the count is lower, and no epoch begins.
        """
        is_samples = name in (SAMPLES, SAMPLES_OF_EPOCH)
        number = None if epoch is None else math.floor(epoch)

        last, before = self._last, self._epoch
        if last is not None:
            is_lower = value < last
            is_next = number is not None and before is not None and number > before
            if is_samples and is_lower and number is not None and not is_next:
                return None

            if is_lower or is_next:
                # The length may be that of one rank, and counts are of all ranks.
                whole = max(int(length or 0), last)
                self._check_end(name, last, whole)
                self._before += self._whole_steps(whole) if is_samples else whole
            else:
                self._interval = max(self._interval, value - last)
                if is_samples and value != length:
                    self._check_rise(name, value - last)

        self._last, self._epoch = value, number
        done = self._before + value
        if is_samples:
            return self._whole_steps(done) // self._samples_per_step

        return done // (self._passes_per_step if name == BATCH_OF_EPOCH else 1)

    def check_share(
        self, samples: float, length: float, percent: float, num_ranks: int
    ) -> None:
        """Refuse a count of one rank's samples, which the percentage beside it shows.

        The percentage is rounded, and may be one step ahead.

        Raises
        ------
        SpecError
            The percentage is that of the samples of all ranks.
        """
        done = length * percent / 100
        slack = length / 100 + 2 * self._samples_per_step
        if abs(done - num_ranks * samples) + slack < abs(done - samples):
            raise SpecError(
                f"a line counts {samples:,.0f} of {length:,.0f} samples and says "
                f"{percent:g}%: it counts the samples of one of {num_ranks} ranks. In "
                f"metrics.regex name the group {SAMPLES_OF_RANK}, not "
                f"{SAMPLES_OF_EPOCH}. Write metrics: mnist if the program prints lines "
                "like those of PyTorch's MNIST example.",
                code="samples_of_one_rank",
            )

    def _whole_steps(self, samples: int) -> int:
        """Return the samples of the steps that see so many, the last one full."""
        return -(-samples // self._samples_per_step) * self._samples_per_step

    def _check_end(self, name: str, last: int, length: int) -> None:
        # The end of an epoch may have no line.
        if 0 < 2 * self._interval < length - last:
            raise SpecError(
                f"{name} ended an epoch at {last:,} of {length:,}, and lines come "
                f"every {self._interval:,} at most: epochs are cut short, and the rest "
                f"was not trained. Leave {length:,} out of metrics.regex, so that only "
                "what lines say is counted.",
                code="epoch_cut_short",
            )

    def _check_rise(self, name: str, rise: int) -> None:
        # With accumulation a line may stand for a pass.
        if rise % (self._samples_per_step // self._passes_per_step):
            raise SpecError(
                f"{name} rose by {rise:,} between two lines, and one optimiser step "
                f"has global_batch_size={self._samples_per_step:,} samples. They are "
                "of all ranks: multiply those of one rank by their number. If batches "
                f"or steps are counted, name the group {BATCH_OF_EPOCH} or "
                f"{STEP_OF_EPOCH}.",
                code="other_samples",
            )

"""The steps that a command has reported: batch arithmetic and step times. No I/O.

Reports come every step or every k steps. The time between two reports is divided by
the steps between them; the statistics are of these means, because the steps inside one
interval cannot be told apart. Intervals in which an evaluation wrote a line are set
apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.launch.command.intervals import Interval, Intervals
from scalelab.launch.command.lines import Report
from scalelab.launch.command.witness.counts import CountWitness
from scalelab.launch.command.witness.rates import RateWitness
from scalelab.launch.steady import is_steady, mean_interval
from scalelab.plan.first_check import RATE_DISAGREES

# How often the bootstrap asks whether the mean is known well enough.
_CHECK_INTERVAL_S = 1.0
# Ranks that train together are hardly a step apart. So many older steps of each rank in
# a row are no delay: the steps have begun anew.
_MOST_LATE_STEPS = 16


@dataclass(frozen=True, slots=True)
class _Point:
    """A report with its time, by the command's own clock or by when it arrived."""

    step: int
    time_s: float


class StepLog:
    """The steps and metrics a command has reported so far, checked at every report.

    Parameters
    ----------
    may_repeat
        Whether a step may be reported twice, as a progress bar does. Elsewhere that is
        refused: two ranks may be writing to one file.
    num_reporters
        Ranks that report to the same place. A step counts when the first of them
        reports it; what the others say of it later is passed over.
    samples_per_epoch, tokens_per_sample
        What the job says of the data; None: not known.

    Attributes
    ----------
    metrics
        The last value of each metric.
    last_step
        The step last reported; None before the first.
    reached_after_steps
        Steps after which the target was first reached; None before.
    intervals
        The intervals between reports.
    ready_s
        When the first step began, by the monotonic clock, estimated from the duration
        of the next steps; None before there are any.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        may_repeat: bool,
        num_reporters: int = 1,
        names_evaluations: bool = False,
        samples_per_epoch: int | None = None,
        tokens_per_sample: int | None = None,
    ) -> None:
        self._trial = trial
        self._counts = CountWitness(trial, samples_per_epoch)
        self._rates = RateWitness(trial, tokens_per_sample)
        self.names_evaluations = names_evaluations
        self._may_repeat = may_repeat or num_reporters > 1
        self._most_late = _MOST_LATE_STEPS * (num_reporters - 1)
        self._num_late = 0
        self.metrics: dict[str, float] = {}
        self.last_step: int | None = None
        self.reached_after_steps: int | None = None
        self._reached_s: float | None = None
        self.ready_s: float | None = None
        self._first_step = 0
        self._covered_steps: int | None = None
        self._has_own_clock = False
        self._first: tuple[_Point, float] | None = None
        self._last: _Point | None = None
        self._began_s: float | None = None
        self._names_at_step: set[str] = set()
        self._is_evaluating = False
        self.intervals = Intervals()
        self._checked_s = 0.0
        self._rows: list[dict[str, Any]] = []

    @property
    def num_seen(self) -> int:
        """Optimiser steps done, those before the first report included."""
        return 0 if self.last_step is None else self._num_seen_at(self.last_step)

    def take(self, reports: Sequence[Report], now_s: float) -> None:
        """Take in reports that arrived together.

        Those without a time of their own are spread evenly over the time since the
        last one.
        """
        steps = [
            report.step
            for report in reports
            if report.step is not None and not report.is_evaluation
        ]
        for report in reports:
            if report.is_evaluation:  # it closes no interval and is no step
                self._is_evaluating = True
                if self.last_step is not None and report.metrics:
                    self._record(report, max(self.last_step, report.step or 0))
                continue
            if report.step is None or report.step == self.last_step:
                self._take_metrics(report)
            elif self._is_late(report.step):
                self._num_late += 1
            else:
                self._advance(report, now_s, max(steps))
            self._rates.take(report, self.num_seen)

    def rows(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        """Return the rows for the stream that were not returned before.

        There are none before two reports have shown when the first step began, or the
        command is over.
        """
        if self._began_s is None and not is_over:
            return []
        origin_s = self._began_s
        if origin_s is None and self._first is not None:
            origin_s = self._first[0].time_s
        rows, self._rows = self._rows, []
        for row in rows:
            if origin_s is not None and "t" in row:
                row["t"] -= origin_s
        return rows

    def is_precise(self, now_s: float) -> bool:
        """Tell whether a throughput trial has measured enough."""
        measurement = self._trial.measurement
        if self.intervals.num_steps >= measurement.steps:
            return True
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return False
        self._checked_s = now_s
        means = self.intervals.step_times_s()
        return is_steady(means, measurement.relative_precision)

    def step_columns(self) -> Mapping[str, Any]:
        """Return step time, its interval and the throughput, by column."""
        measured_s, num_steps = self.intervals.seconds, self.intervals.num_steps
        columns: dict[str, Any] = {"num_steps": num_steps}
        if measured_s <= 0:
            return columns
        step_time_s = measured_s / num_steps
        columns["step_time_s"] = step_time_s
        columns["throughput_samples_per_s"] = (
            self._trial.global_batch_size / step_time_s
        )
        means = self.intervals.step_times_s()
        if len(means) >= 4:
            # Uneven intervals weigh alike in the bootstrap, not in the mean.
            scale = step_time_s / float(means.mean())
            lo, hi = mean_interval(means)
            columns["step_time_lo_s"], columns["step_time_hi_s"] = (
                lo * scale,
                hi * scale,
            )
        return columns | self._rate_columns(step_time_s, means)

    def _rate_columns(
        self, step_time_s: float, means: npt.NDArray[np.float64]
    ) -> dict[str, Any]:
        """Return the step time by the program's own rate, if that can tell."""
        measured = [each for each in (step_time_s, float(np.median(means))) if each > 0]
        warmup_steps = self._trial.measurement.warmup_steps
        by_rate = self._rates.step_time_s(measured, after_steps=warmup_steps)
        if by_rate is None or self._rates.is_settling(warmup_steps):
            return {}
        columns: dict[str, Any] = {"reported_step_time_s": by_rate}
        is_off = self._rates.contradicts(by_rate, measured)
        # Samples that agree with the steps have shown what is counted.
        if is_off and not self._counts.holds_samples:
            columns["validity"] = [RATE_DISAGREES]
        return columns

    def _slower_by_own_rate(self) -> float | None:
        """Return how much longer steps are by the program's own rate than as read."""
        so_far = self.intervals.median_s
        by_rate = self._rates.step_time_s([so_far]) if so_far else None
        return by_rate / so_far if by_rate and so_far else None

    def seconds_to_target(self) -> float | None:
        """Return the time until the target was reached; None: not reached, or unknown.

        Evaluations are not in it where the command's lines tell them.
        """
        if self._reached_s is None:
            return None
        return self._reached_s - self.intervals.evaluation_s(self.reached_after_steps)

    def evaluation_columns(self) -> dict[str, Any]:
        """Return the time of evaluations, and how far apart they are, by column."""
        if not self.names_evaluations:
            return {}
        columns: dict[str, Any] = {"evaluation_s": self.intervals.evaluation_s()}
        if steps := self.intervals.steps_between_evaluations:
            samples = round(steps * self._trial.global_batch_size)
            columns["evaluation_interval_samples"] = samples
        return columns

    def _num_seen_at(self, step: int) -> int:
        covered = self._covered_steps
        first = self._first_step
        return step - first + (first if covered is None else covered)

    def _advance(self, report: Report, now_s: float, last_step: int) -> None:
        assert report.step is not None
        if self.last_step is not None and report.step < self.last_step:
            raise SpecError(
                f"step went from {self.last_step} back to {report.step}. Steps must "
                "increase: count optimiser steps from the start of the training, not "
                "of an epoch, and let only rank 0 write them."
            )
        self._num_late = 0
        self._counts.take(report, self._slower_by_own_rate)
        if self.last_step is None:
            self._first_step = report.step
            self._has_own_clock = report.t is not None
        elif self._covered_steps is None:
            gap = report.step - self._first_step
            self._covered_steps = min(self._first_step, gap)
        self.last_step = report.step
        self._names_at_step = set(report.metrics)
        time_s = self._time_of(report, now_s, last_step)
        position = self._position(report.step)
        row: dict[str, Any] = {**report.metrics, "event": "step", **position}
        if time_s is not None:
            row |= self._interval_to(_Point(report.step, time_s), now_s)
        self._rows.append(row)
        self.metrics |= report.metrics
        self._check_target(report, report.step)

    def _is_late(self, step: int) -> bool:
        is_older = self.last_step is not None and step < self.last_step
        return is_older and self._num_late < self._most_late

    def _take_metrics(self, report: Report) -> None:
        is_repetition = report.step is not None and not self._may_repeat
        if is_repetition and not set(report.metrics) - self._names_at_step:
            raise SpecError(
                f"step {report.step} was reported twice. Steps must increase, and only "
                "rank 0 should write them: guard the line with the rank, or write to "
                "$SCALELAB_METRICS, which leads nowhere on the other ranks."
            )
        if self.last_step is None or not report.metrics:
            return
        self._names_at_step |= set(report.metrics)
        self._record(report, self.last_step)

    def _record(self, report: Report, step: int) -> None:
        row = {**report.metrics, "event": "evaluation", **self._position(step)}
        if self._last is not None:
            row["t"] = self._last.time_s
        self._rows.append(row)
        self.metrics |= report.metrics
        self._check_target(report, step)

    def _position(self, step: int) -> dict[str, Any]:
        samples = self._num_seen_at(step) * self._trial.global_batch_size
        return {"step": step, "samples": samples}

    def _time_of(self, report: Report, now_s: float, last_step: int) -> float | None:
        """Return a report's time by the clock in use; None where it gives none."""
        assert report.step is not None
        if self._has_own_clock:
            if report.t is not None and self._last and report.t < self._last.time_s:
                raise SpecError(
                    f"t went from {self._last.time_s:g} back to {report.t:g} at step "
                    f"{report.step}. It is a clock of seconds that runs through the "
                    "whole training: do not start it again, or leave t out."
                )
            return report.t
        if report.step == last_step:
            return now_s
        if self._last is None or self._is_evaluating:
            return None  # how much of the time was the evaluation's is not known
        share = (report.step - self._last.step) / (last_step - self._last.step)
        return self._last.time_s + share * (now_s - self._last.time_s)

    def _interval_to(self, point: _Point, now_s: float) -> dict[str, Any]:
        """Close the interval that ends here; return what the row says of it."""
        last, self._last = self._last, point
        if last is None:
            self._first, self._is_evaluating = (point, now_s), False
            return {"t": point.time_s}
        warmup_steps = self._trial.measurement.warmup_steps
        interval = Interval(
            num_steps=point.step - last.step,
            seconds=point.time_s - last.time_s,
            end_step=self._num_seen_at(point.step),
            is_warm_up=self._num_seen_at(last.step) < warmup_steps,
            holds_evaluation=self._is_evaluating,
        )
        self._is_evaluating = False
        self.intervals.add(interval)
        if self._began_s is None and not interval.holds_evaluation:
            # When the first step began follows from how long the next ones took.
            assert self._first is not None
            first, arrived_s = self._first
            covered_s = self._num_seen_at(first.step) * interval.step_time_s
            self._began_s = first.time_s - covered_s
            self.ready_s = arrived_s - covered_s
        if interval.holds_evaluation:
            return {"t": point.time_s}
        return {"t": point.time_s, "step_time_s": interval.step_time_s}

    def _check_target(self, report: Report, step: int) -> None:
        target = self._trial.measurement.target
        if target is None or self._trial.kind is TrialKind.THROUGHPUT:
            return
        value = report.metrics.get(target.metric)
        if value is None or self.reached_after_steps is not None:
            return
        if target.is_reached_by(value) and self._num_seen_at(step) > 0:
            self.reached_after_steps = self._num_seen_at(step)
            if self._last is not None and self._began_s is not None:
                self._reached_s = self._last.time_s - self._began_s

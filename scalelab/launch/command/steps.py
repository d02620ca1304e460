"""The steps that a command has reported: batch arithmetic and step times. No I/O.

Reports come every step or every k steps. The time between two reports is divided by
the steps between them; the statistics are of these means, because the steps inside one
interval cannot be told apart. Intervals in which an evaluation wrote a line are set
apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.launch.steady import (
    SETTLES_WITHIN_S,
    interval_columns,
    is_steady,
    later_columns,
    warmup_to_go_on_with,
)
from scalelab.launch.verdict import fewest_steps
from scalelab.plan.first_check import UNEXPLAINED
from scalelab.reading.logs.doubt import LogWitness
from scalelab.reading.logs.lines import Report

# An interval beside one that holds an evaluation belongs to the evaluation where its
# steps seem to take so many times as long as usual: lines of two streams may be written
# in another order than they were printed in.
_LONG = 2.0
# How often the bootstrap asks whether the mean is known well enough.
_CHECK_INTERVAL_S = 1.0
# A long trial whose later steps nothing explains is looked at so often.
_LOOK_AGAIN_S = 2.0
# Samples and ranks are looked at after so many steps, and at the end.
CONFIRM_AFTER_STEPS = 20
# Ranks that train together are hardly a step apart. So many older steps of each rank in
# a row are no delay: the steps have begun anew.
_MOST_LATE_STEPS = 16
# So many first losses tell whether two trials trained alike; of those some must differ.
_FIRST, _LEAST_APART = 4, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """The time between two reports."""

    num_steps: int
    seconds: float
    end_step: int
    holds_evaluation: bool

    @property
    def step_time_s(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.num_steps


class Intervals(list[Interval]):
    """All intervals of an attempt.

    Those that hold an evaluation, and long ones next to them, are set apart: what they
    took beyond the time of their steps is evaluation time. Those that begin before
    ``warmup_steps`` are not measured.
    """

    def __init__(self, warmup_steps: int) -> None:
        super().__init__()
        self.warmup_steps = warmup_steps

    @property
    def num_steps(self) -> int:
        """Steps that were measured: neither warm-up nor beside an evaluation."""
        return sum(interval.num_steps for interval in self._measured())

    @property
    def seconds(self) -> float:
        """Seconds that the measured steps took."""
        return sum(interval.seconds for interval in self._measured())

    @property
    def num_evaluations(self) -> int:
        """Intervals that hold an evaluation."""
        return sum(interval.holds_evaluation for interval in self)

    @property
    def steps_between_evaluations(self) -> float | None:
        """Mean steps from one evaluation to the next; None: there were not two."""
        ends = [interval.end_step for interval in self if interval.holds_evaluation]
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else None

    def step_times_s(self) -> npt.NDArray[np.float64]:
        """Return the mean seconds per step of each measured interval, in order."""
        return np.array([interval.step_time_s for interval in self._measured()])

    def ends(self) -> npt.NDArray[np.int64]:
        """Return after which step each measured interval ended, in order."""
        return np.array([interval.end_step for interval in self._measured()])

    def evaluation_s(self, until_step: int | None = None) -> float:
        """Return the seconds of evaluations, in intervals that ended by a step."""
        num_steps = self.num_steps
        step_time_s = self.seconds / num_steps if num_steps else 0.0
        return sum(
            max(0.0, interval.seconds - interval.num_steps * step_time_s)
            for interval, is_apart in self._told_apart()
            if is_apart and (until_step is None or interval.end_step <= until_step)
        )

    def _measured(self) -> list[Interval]:
        return [
            interval
            for interval, is_apart in self._told_apart()
            if not is_apart and not self._is_warm_up(interval)
        ]

    def _is_warm_up(self, interval: Interval) -> bool:
        return interval.end_step - interval.num_steps < self.warmup_steps

    def _told_apart(self) -> list[tuple[Interval, bool]]:
        if not self.num_evaluations:
            return [(interval, False) for interval in self]
        holds = [False, *(interval.holds_evaluation for interval in self), False]
        beside = [a or b for a, b in zip(holds[:-2], holds[2:], strict=True)]
        both = list(zip(self, beside, strict=True))
        usual = [
            interval.step_time_s
            for interval, is_beside in both
            if not (
                interval.holds_evaluation or is_beside or self._is_warm_up(interval)
            )
        ]

        longest = _LONG * float(np.median(usual)) if usual else np.inf

        return [
            (
                interval,
                interval.holds_evaluation
                or (is_beside and interval.step_time_s > longest),
            )
            for interval, is_beside in both
        ]


class _Point(NamedTuple):
    step: int
    time_s: float


class StepLog:
    """The steps and metrics a command has reported so far, checked at every report.

    A step is reported twice only where it ``may_repeat``, as on a progress bar, or
    where several ranks report to the same place: then the first one counts. It
    ``sees_steps`` where they are known without the lines, whose metrics are of the last
    step then.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        may_repeat: bool,
        num_reporters: int = 1,
        names_evaluations: bool = False,
        sees_steps: bool = False,
        tokens_per_sample: int | None = None,
    ) -> None:
        self._trial = trial
        self.samples_per_step = float(trial.global_batch_size)
        self._witness = LogWitness(trial, tokens_per_sample)
        self.names_evaluations = names_evaluations
        self._sees_steps = sees_steps
        self._may_repeat = may_repeat or num_reporters > 1
        self._most_late = _MOST_LATE_STEPS * (num_reporters - 1)
        self._num_late = self._num_reported = 0
        self.metrics: dict[str, float] = {}
        self.last_step: int | None = None
        self.reached_after_steps: int | None = None  # the target, for the first time
        self._reached_s: float | None = None
        # When the first step began, by the monotonic clock, estimated from the duration
        # of the next steps.
        self.ready_s: float | None = None
        self._num_skipped = 0  # before the first, by a training that was continued
        self._has_own_clock = False
        self._first: tuple[_Point, float] | None = None
        self._last: _Point | None = None
        self._began_s: float | None = None
        self._names_at_step: set[str] = set()
        self._is_evaluating = False
        self.intervals = Intervals(trial.measurement.warmup_steps)
        self._checked_s = 0.0
        # Of a long trial: after which step another trial would have ended.
        self._window_end: int | None = None
        self._ends_at_s = self._ends_by_s = 0.0
        self._rows: list[dict[str, Any]] = []
        self._losses: list[float] = []

    @property
    def first_losses(self) -> str | None:
        """The first losses, as printed; None: too few, or they do not change."""
        is_told = len(self._losses) == _FIRST and len(set(self._losses)) >= _LEAST_APART
        return " ".join(map(str, self._losses)) if is_told else None

    @property
    def diverged(self) -> dict[str, float]:
        """The target metric, or without a target the loss, if it ended as no number."""
        target = self._trial.measurement.target
        losses = (name for name in self.metrics if "loss" in name.lower())
        named = next(losses, None) if target is None else target.metric
        last = {name: self.metrics[name] for name in self.metrics if name == named}
        return {name: last[name] for name in last if not math.isfinite(last[name])}

    @property
    def num_seen(self) -> int:
        """Optimiser steps done, those before the first report included."""
        return 0 if self.last_step is None else self._num_seen_at(self.last_step)

    def samples_of(self, num_steps: float) -> int:
        """Return the samples of so many steps."""
        return round(num_steps * self.samples_per_step)

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

            last_step = self.last_step
            if report.step is None or report.step == last_step:
                self._take_metrics(report)
            elif last_step is None or report.step > last_step:
                self._advance(report, report.step, now_s, max(steps))
            elif self._num_late < self._most_late:
                self._num_late += 1
            else:
                raise SpecError(
                    f"step went from {last_step} back to {report.step}. Steps must "
                    "increase: count optimiser steps from the start of the training, "
                    "not of an epoch, and let only rank 0 write them.",
                    code="step_went_back",
                )

            self._witness.take(report, self.num_seen)

    def rows(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        """Return the rows for the stream that were not returned before.

        There are none before two reports have shown when the first step began, and the
        samples of a step were looked at, or the command is over.
        """
        origin_s = self._began_s
        is_early = self._sees_steps and self.num_seen < CONFIRM_AFTER_STEPS
        if (origin_s is None or is_early) and not is_over:
            return []
        if origin_s is None and self._first is not None:
            origin_s = self._first[0].time_s

        rows, self._rows = self._rows, []
        for row in rows:
            row["samples"] = self.samples_of(self._num_seen_at(row["step"]))
            if origin_s is not None and "t" in row:
                row["t"] -= origin_s

        return rows

    def is_precise(self, now_s: float) -> bool:
        """Tell whether a throughput trial has measured enough.

        Where step times have not settled then, the warm-up becomes longer. A long trial
        goes on for its time, and for 2 min where nothing explains its later steps.
        """
        if self._window_end is not None:
            return self._has_taken_long(now_s)
        intervals, measurement = self.intervals, self._trial.measurement

        def is_precise() -> bool:
            if now_s - self._checked_s < _CHECK_INTERVAL_S:
                return False
            self._checked_s = now_s
            return is_steady(intervals.step_times_s(), measurement.relative_precision)

        spent_s = sum(interval.seconds for interval in intervals)
        warmup_steps = warmup_to_go_on_with(
            intervals.step_times_s(),
            num_steps=intervals.num_steps,
            warmup_steps=intervals.warmup_steps,
            measurement=measurement,
            spent_s=spent_s,
            is_precise=is_precise,
        )
        if warmup_steps is not None:
            intervals.warmup_steps = warmup_steps
            return False

        self.measure_enough()
        self._window_end = self.num_seen
        self._ends_at_s = now_s + (measurement.least_s or 0.0) - spent_s
        longest_s = min(SETTLES_WITHIN_S, (measurement.timeout_s or math.inf) / 2)
        self._ends_by_s = now_s + longest_s - spent_s
        return self._has_taken_long(now_s)

    def _has_taken_long(self, now_s: float) -> bool:
        """Tell whether a long trial has its time, and its later steps are explained."""
        if now_s < self._ends_at_s:
            return False
        is_explained = self._later_columns().get("later_differs") != UNEXPLAINED
        self._ends_at_s = now_s + _LOOK_AGAIN_S
        return is_explained or now_s >= self._ends_by_s

    def _later_columns(self) -> dict[str, Any]:
        if not self._trial.is_long or self._window_end is None:
            return {}
        return later_columns(
            self.intervals.step_times_s(),
            self.intervals.ends() - self._num_skipped,
            window_end=self._window_end,
            samples_per_step=self.samples_per_step,
            samples_per_epoch=self._trial.measurement.samples_per_epoch,
        )

    def measure_enough(self) -> None:
        """Shorten a warm-up that became longer, where it has left too few steps."""
        intervals, trial = self.intervals, self._trial
        while (
            intervals.num_steps < fewest_steps(trial)
            and intervals.warmup_steps > trial.measurement.warmup_steps
        ):
            intervals.warmup_steps //= 2

    def step_columns(self) -> Mapping[str, Any]:
        """Return step time, its interval and the throughput, by column."""
        measured_s, num_steps = self.intervals.seconds, self.intervals.num_steps
        if measured_s <= 0:
            return {"num_steps": num_steps}

        step_time_s = measured_s / num_steps
        columns: dict[str, Any] = {"num_steps": num_steps, "step_time_s": step_time_s}
        means = self.intervals.step_times_s()
        columns |= interval_columns(means, step_time_s)
        columns["throughput_samples_per_s"] = (
            self.samples_per_step / columns["step_time_s"]
        )
        columns |= self._later_columns()
        measured = [
            time_s for time_s in (step_time_s, float(np.median(means))) if time_s > 0
        ]
        after_steps = self.intervals.warmup_steps
        self._witness.samples_per_step = self.samples_per_step
        return columns | self._witness.doubt(measured, after_steps=after_steps)

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
            columns["evaluation_interval_samples"] = self.samples_of(steps)
        return columns

    def _num_seen_at(self, step: int) -> int:
        return step - self._num_skipped

    def _advance(self, report: Report, step: int, now_s: float, last_step: int) -> None:
        self._num_late = 0
        self._witness.check(report, step)
        if self.last_step is None:
            self._has_own_clock = report.t is not None
        elif self._num_reported == 1:
            # The first report stands for as many steps as the second, at most.
            self._num_skipped = max(0, 2 * self.last_step - step)

        self._num_reported += 1
        self.last_step = step
        self._names_at_step = set(report.metrics)
        time_s = self._time_of(report, step, now_s, last_step)

        row = self._row(report, "step", step)
        if time_s is not None:
            row |= self._interval_to(_Point(step, time_s), now_s)

        self._check_target(report, step)

    def _take_metrics(self, report: Report) -> None:
        is_repetition = report.step is not None and not self._may_repeat
        if is_repetition and not set(report.metrics) - self._names_at_step:
            raise SpecError(
                f"step {report.step} was reported twice. Steps must increase, and only "
                "rank 0 should write them: guard the line with the rank, or write to "
                "$SCALELAB_METRICS, which leads nowhere on the other ranks.",
                code="step_reported_twice",
            )

        if self.last_step is not None and report.metrics:
            self._names_at_step |= set(report.metrics)
            self._record(report, self.last_step)

    def _record(self, report: Report, step: int) -> None:
        is_step = self._sees_steps and not report.is_evaluation
        row = self._row(report, "step" if is_step else "evaluation", step)
        if self._last is not None:
            row["t"] = self._last.time_s
        self._check_target(report, step)

    def _row(self, report: Report, event: str, step: int) -> dict[str, Any]:
        row = {**report.metrics, "event": event, "step": step}
        self._rows.append(row)
        if event == "step" and len(self._losses) < _FIRST:
            named = (name for name in report.metrics if "loss" in name.lower())
            losses = [report.metrics[name] for name in named][:1]
            self._losses += filter(math.isfinite, losses)
        self.metrics |= report.metrics
        return row

    def _time_of(
        self, report: Report, step: int, now_s: float, last_step: int
    ) -> float | None:
        last = self._last
        if self._has_own_clock:
            if report.t is not None and last and report.t < last.time_s:
                raise SpecError(
                    f"t went from {last.time_s:g} back to {report.t:g} at step "
                    f"{step}. It is a clock of seconds that runs through the "
                    "whole training: do not start it again, or leave t out.",
                    code="clock_went_back",
                )
            return report.t

        if step == last_step:
            return now_s
        if last is None or self._is_evaluating:
            return None  # how much of the time was the evaluation's is not known

        share = (step - last.step) / (last_step - last.step)
        return last.time_s + share * (now_s - last.time_s)

    def _interval_to(self, point: _Point, now_s: float) -> dict[str, Any]:
        last, self._last = self._last, point
        holds_evaluation, self._is_evaluating = self._is_evaluating, False
        if last is None:
            self._first = (point, now_s)
            return {"t": point.time_s}

        interval = Interval(
            num_steps=point.step - last.step,
            seconds=point.time_s - last.time_s,
            end_step=self._num_seen_at(point.step),
            holds_evaluation=holds_evaluation,
        )

        self.intervals.append(interval)
        if holds_evaluation:
            return {"t": point.time_s}

        if self._began_s is None:
            # When the first step began follows from how long the next ones took.
            assert self._first is not None
            first, arrived_s = self._first
            covered_s = self._num_seen_at(first.step) * interval.step_time_s
            self._began_s = first.time_s - covered_s
            self.ready_s = arrived_s - covered_s

        return {"t": point.time_s, "step_time_s": interval.step_time_s}

    def _check_target(self, report: Report, step: int) -> None:
        target, num_seen = self._trial.measurement.target, self._num_seen_at(step)
        if target is None or self._trial.kind is TrialKind.THROUGHPUT:
            return

        value = report.metrics.get(target.metric)
        if value is None or self.reached_after_steps is not None or num_seen <= 0:
            return

        if math.isfinite(value) and target.is_reached_by(value):
            self.reached_after_steps = num_seen
            if self._last is not None and self._began_s is not None:
                self._reached_s = self._last.time_s - self._began_s

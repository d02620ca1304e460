"""The intervals between the reports of a command: steps, and evaluations set apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# An interval beside one that holds an evaluation belongs to the evaluation where its
# steps seem to take so many times as long as usual: lines of two streams may be written
# in another order than they were printed in.
_LONG = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """The time between two reports."""

    num_steps: int
    seconds: float
    end_step: int
    is_warm_up: bool
    holds_evaluation: bool

    @property
    def step_time_s(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.num_steps


class Intervals:
    """All intervals of an attempt.

    Those that hold an evaluation, and long ones next to them, are set apart: what they
    took beyond the time of their steps is evaluation time.
    """

    def __init__(self) -> None:
        self._all: list[Interval] = []

    def add(self, interval: Interval) -> None:
        """Take in the next interval."""
        self._all.append(interval)

    @property
    def num_steps(self) -> int:
        """Steps that were measured: neither warm-up nor beside an evaluation."""
        return sum(each.num_steps for each in self._measured())

    @property
    def seconds(self) -> float:
        """Seconds that the measured steps took."""
        return sum(each.seconds for each in self._measured())

    @property
    def num_evaluations(self) -> int:
        """Intervals that hold an evaluation."""
        return sum(each.holds_evaluation for each in self._all)

    @property
    def steps_between_evaluations(self) -> float | None:
        """Mean steps from one evaluation to the next; None: there were not two."""
        ends = [each.end_step for each in self._all if each.holds_evaluation]
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else None

    @property
    def median_s(self) -> float | None:
        """Median seconds per step, of the warm-up too; None before two reports."""
        known = [each.step_time_s for each in self._all if each.seconds > 0]
        return float(np.median(known)) if known else None

    def step_times_s(self) -> npt.NDArray[np.float64]:
        """Return the mean seconds per step of each measured interval, in order."""
        return np.array([each.step_time_s for each in self._measured()])

    def evaluation_s(self, until_step: int | None = None) -> float:
        """Return the seconds of evaluations, in intervals that ended by a step."""
        num_steps = self.num_steps
        step_time_s = self.seconds / num_steps if num_steps else 0.0
        return sum(
            max(0.0, each.seconds - each.num_steps * step_time_s)
            for each, is_apart in zip(self._all, self._apart(), strict=True)
            if is_apart and (until_step is None or each.end_step <= until_step)
        )

    def _measured(self) -> list[Interval]:
        return [
            each
            for each, is_apart in zip(self._all, self._apart(), strict=True)
            if not is_apart and not each.is_warm_up
        ]

    def _apart(self) -> Iterator[bool]:
        if not self.num_evaluations:
            yield from (False for _ in self._all)
            return
        holds = [False, *(each.holds_evaluation for each in self._all), False]
        beside = [a or b for a, b in zip(holds[:-2], holds[2:], strict=True)]
        usual = [
            each.step_time_s
            for each, is_beside in zip(self._all, beside, strict=True)
            if not (each.holds_evaluation or is_beside or each.is_warm_up)
        ]
        longest = _LONG * float(np.median(usual)) if usual else np.inf
        for each, is_beside in zip(self._all, beside, strict=True):
            yield each.holds_evaluation or (is_beside and each.step_time_s > longest)

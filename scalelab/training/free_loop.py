"""Runs an engine whose ranks take steps without waiting for each other.

Ranks meet where training ends, evaluates or saves, outside of the step clock, and
nowhere else. Steps are timed where they are granted; rank 0 reads those times about
once a second, records them, and has the series end early where it decides so.
"""

import time

import numpy as np

from scalelab.launch.process_tree import stop_signal_has_come
from scalelab.training.engines.base import FreeEngine
from scalelab.training.loop import BLOCK_S, Loop
from scalelab.training.probes.meter import Phase, Seconds


class FreeLoop(Loop):
    """The training loop of one rank that waits for no other.

    All ranks have the same steps, those of the trial. Each divides their times among
    the phases as its own optimiser steps were divided.
    """

    _engine: FreeEngine

    def _block_steps(self) -> int:
        return self._plan.stop_after(self._tally.step) - self._tally.step

    def _run_block(self, num_steps: int) -> None:
        first, self._times_s = self._tally.step, list[float]()
        has_just_resumed = first > 0 and self._last_step_s is None
        self._first_measured = max(self._plan.warmup_steps, first + has_just_resumed)
        self._spent = np.zeros(len(Phase))
        # What comes before the first step of an attempt is its start-up.
        self._context.progress(0 if has_just_resumed else first)
        self._engine.begin(first, num_steps)
        self._clock.start()
        looked_s = time.monotonic()

        own_steps: list[int] = []
        while (step := self._engine.take()) is not None:
            own_steps.append(step)
            self._context.progress(step)
            if time.monotonic() - looked_s >= BLOCK_S:
                self._look(own_steps)
                self._clock.start()
                looked_s = time.monotonic()

        self._finish(first, own_steps)

    def _look(self, own_steps: list[int]) -> None:
        shares = self._drain(own_steps)
        ends = self._trial.saves_checkpoints and stop_signal_has_come()
        if self._context.is_first:
            self._record(self._engine.step_times_s(), shares)
            self._tally.ending = self._ending(is_asked=False)
            ends |= self._tally.ending is not None or self._is_saved(None)
        if ends:
            self._engine.halt(self._plan.warmup_steps, self._plan.cycle)

    def _drain(self, own_steps: list[int]) -> Seconds:
        readings = self._clock.drain()
        self._monitor.sample()
        is_measured = np.array(own_steps, dtype=int) > self._first_measured
        self._spent += readings[is_measured].sum(axis=0)
        own_steps.clear()
        return _shares(readings.sum(axis=0))

    def _record(self, times_s: list[float], shares: Seconds) -> None:
        tally, readings = self._tally, np.outer(times_s, shares)
        self._record_steps(readings)
        tally.measured.append(readings[max(0, self._first_measured - tally.step) :])
        tally.step += len(times_s)
        self._times_s += times_s

    def _finish(self, first: int, own_steps: list[int]) -> None:
        shares = self._drain(own_steps)
        self._context.progress(self._engine.num_granted)
        self._context.sum([0])

        if self._context.is_first:
            self._record(self._engine.step_times_s(is_over=True), shares)
        else:
            self._times_s = [0.0] * (self._engine.num_granted - first)

        times_s = self._context.agree(self._times_s)
        if not self._context.is_first:
            measured_s = times_s[max(0, self._first_measured - first) :]
            self._tally.measured.append(np.outer(measured_s, _shares(self._spent)))

        self._tally.step = self._engine.num_granted
        self._last_step_s = max(sum(times_s) / len(times_s), 1e-6)


def _shares(seconds: Seconds) -> Seconds:
    """Return the phases' shares, shape (4,); who took no step has only waited."""
    if seconds.sum() == 0:
        seconds = np.eye(len(Phase))[Phase.EXPOSED_SYNC]
    return np.asarray(seconds / seconds.sum())

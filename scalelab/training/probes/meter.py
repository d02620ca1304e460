"""Step clocks: they measure data wait, compute, exposed exchange and optimiser.

A step is an unbroken chain of intervals; a mark ends the current interval and says
which phase it belonged to. So the phases of a step add up to its time, and consecutive
steps share their boundary.

On CPU an interval is host time. On CUDA it is time on the device's default stream,
between events that the host records without waiting: an interval in which the host
prepared data while the device was still busy costs nothing, as it should. Events are
read when :meth:`StepClock.drain` is called, outside the clock.

*Exposed synchronisation* begins when the last bucket of this rank's gradients is ready
and ends when ``backward`` returns (on CUDA: when the device may go on) with the
averaged gradients. It holds the part of the exchange that computation did not hide, and
the wait for slower ranks.
"""

import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Seconds = npt.NDArray[np.float64]


class Phase(IntEnum):
    """The phases of a step; the value is the column in a clock's readings."""

    DATA_WAIT = 0
    COMPUTE = 1
    EXPOSED_SYNC = 2
    OPTIMIZER = 3

    @property
    def column(self) -> str:
        """Name of the phase's column in the observations."""
        return f"{self.name.lower()}_s"


class HostClock:
    """Measures the phases of consecutive steps in host time, for CPU ranks."""

    def __init__(self) -> None:
        self._last = 0.0
        self._step = [0.0] * len(Phase)
        self._steps: list[list[float]] = []

    def start(self) -> None:
        """Start the first interval of a series of steps."""
        self._last = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        """End the current interval; it belonged to this phase."""
        now = time.perf_counter()
        self._step[phase] += now - self._last
        self._last = now

    def end_step(self) -> None:
        """End the step; its last interval has been marked."""
        self._steps.append(self._step)
        self._step = [0.0] * len(Phase)

    def drain(self) -> Seconds:
        """Return the steps since the last call, shape (num_steps, 4), in seconds."""
        steps, self._steps = self._steps, []
        return np.array(steps, dtype=np.float64).reshape(-1, len(Phase))


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class DeviceClock:
    """Measures the phases of consecutive steps in device time, for CUDA ranks.

    Parameters
    ----------
    make_event
        Returns a new ``torch.cuda.Event``; they are used again after each reading.
    """

    def __init__(self, make_event: Callable[[], Any] = _timing_event) -> None:
        self._make_event = make_event
        self._spare: list[Any] = []
        self._start: Any = None
        self._marks: list[tuple[Phase, Any]] = []
        self._step_ends: list[int] = []

    def start(self) -> None:
        """Start the first interval of a series of steps."""
        self._start = self._record()

    def mark(self, phase: Phase) -> None:
        """End the current interval; it belonged to this phase."""
        self._marks.append((phase, self._record()))

    def end_step(self) -> None:
        """End the step; its last interval has been marked."""
        self._step_ends.append(len(self._marks))

    def drain(self) -> Seconds:
        """Return the steps since the last call, shape (num_steps, 4), in seconds.

        Waits for the device; call it outside the measured steps.
        """
        steps = np.zeros((len(self._step_ends), len(Phase)))
        if self._start is None or not self._marks:
            return steps

        self._marks[-1][1].synchronize()
        last, index = self._start, 0
        for step, end in enumerate(self._step_ends):
            for phase, event in self._marks[index:end]:
                steps[step, phase] += last.elapsed_time(event) / 1e3
                last = event
            index = end

        self._spare += [self._start, *(event for _, event in self._marks)]
        self._start = None
        self._marks.clear()
        self._step_ends.clear()
        return steps

    def _record(self) -> Any:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event


StepClock = HostClock | DeviceClock


def step_clock(device: torch.device) -> StepClock:
    """Return the clock that fits the device."""
    return DeviceClock() if device.type == "cuda" else HostClock()

import time
from itertools import count

import numpy as np
import pytest
import torch

from scalelab.training.probes.meter import DeviceClock, HostClock, Phase, step_clock


class StubEvent:
    """Stands in for a CUDA event: its time is the order in which it was recorded."""

    ticks = count()
    made = 0

    def __init__(self) -> None:
        StubEvent.made += 1
        self.at_ms = None

    def record(self) -> None:
        self.at_ms = 10.0 * next(self.ticks)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "StubEvent") -> float:
        return end.at_ms - self.at_ms


def two_steps(clock: DeviceClock) -> np.ndarray:
    clock.start()
    clock.mark(Phase.DATA_WAIT)
    clock.mark(Phase.COMPUTE)
    clock.mark(Phase.EXPOSED_SYNC)
    clock.mark(Phase.OPTIMIZER)
    clock.end_step()
    clock.mark(Phase.COMPUTE)
    clock.mark(Phase.COMPUTE)
    clock.mark(Phase.OPTIMIZER)
    clock.end_step()
    return clock.drain()


def test_device_clock_attributes_intervals_between_events() -> None:
    readings = two_steps(DeviceClock(StubEvent))
    np.testing.assert_allclose(readings, [[0.01, 0.01, 0.01, 0.01], [0, 0.02, 0, 0.01]])


def test_device_clock_uses_events_again() -> None:
    clock = DeviceClock(StubEvent)
    two_steps(clock)
    made = StubEvent.made
    assert two_steps(clock).shape == (2, 4)
    assert StubEvent.made == made


@pytest.mark.parametrize("clock", [HostClock(), DeviceClock(StubEvent)])
def test_nothing_measured_is_an_empty_reading(clock: DeviceClock | HostClock) -> None:
    assert clock.drain().shape == (0, 4)


def test_host_clock_adds_up_to_the_time_that_passed() -> None:
    clock = HostClock()
    before = time.perf_counter()
    clock.start()
    for phase in (Phase.COMPUTE, Phase.OPTIMIZER, Phase.COMPUTE):
        time.sleep(0.005)
        clock.mark(phase)
    clock.end_step()
    passed = time.perf_counter() - before
    (step,) = clock.drain()
    assert step[Phase.COMPUTE] >= 0.01
    assert step[Phase.OPTIMIZER] >= 0.005
    assert 0.015 <= step.sum() <= passed


def test_marks_cost_little_next_to_a_small_step() -> None:
    clock = HostClock()
    num_steps = 2000
    costs, readings = [], []
    for _ in range(5):
        started = time.thread_time()
        for _ in range(num_steps * len(Phase)):
            time.perf_counter()
        readings.append((time.thread_time() - started) / num_steps)
        started = time.thread_time()
        clock.start()
        for _ in range(num_steps):
            for phase in Phase:
                clock.mark(phase)
            clock.end_step()
        costs.append((time.thread_time() - started) / num_steps)
        clock.drain()
    assert min(costs) < 50 * min(readings), "a mark is hardly more than a reading"


def test_phases_name_their_columns() -> None:
    assert [phase.column for phase in Phase] == [
        "data_wait_s",
        "compute_s",
        "exposed_sync_s",
        "optimizer_s",
    ]


def test_cpu_is_timed_by_the_host() -> None:
    assert isinstance(step_clock(torch.device("cpu")), HostClock)
    assert isinstance(step_clock(torch.device("cuda", 0)), DeviceClock)

import time
from dataclasses import dataclass

import pytest

from scalelab.launch.stall import WakingTime


@dataclass
class Clock:
    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def test_only_looks_that_are_far_too_late_end_a_pause(clock: Clock) -> None:
    waking = WakingTime(beat_s=1.0)
    for passed_s, paused_s in [(1.0, 0.0), (2.9, 0.0), (36.0, 35.0), (1.0, 35.0)]:
        clock.now_s += passed_s
        waking.look()
        assert waking.paused_s == pytest.approx(paused_s)


def test_a_pause_is_taken_off_what_began_before_it(clock: Clock) -> None:
    waking = WakingTime(beat_s=1.0)
    clock.now_s += 36.0
    now_s = waking.look()
    since = {moment_s: now_s - waking.of(moment_s) for moment_s in (90, 101, 110, 136)}
    assert since == {90: 11.0, 101: 0.0, 110: 0.0, 136: 0.0}
    assert waking.left_s(90, 60.0) == 49.0

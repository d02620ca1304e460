"""Interruptions: the simulation against Daly's formula and against another simulation.

The other one knows neither draws nor memory: each node has a clock of its own.
"""

import heapq
import math
import random
from typing import NamedTuple

import numpy as np
import pytest

from scalelab.recommend.money.interruptions import (
    MOST_TIMES,
    Interruptions,
    best_interval,
    simulated,
)

HOUR = 3600.0
DRAWS = 4000


def terms(
    every_s: float, num_draws: int = DRAWS, **said: float | None
) -> Interruptions:
    given = {"checkpoint_s": 60.0, "interval_s": None, "restart_s": 60.0, "wait_s": 0.0}
    return Interruptions(
        per_second=np.full(num_draws, 1 / every_s),
        **(given | said),  # type: ignore[arg-type]
    )


class Found(NamedTuple):
    time_s: np.ndarray
    charged_s: np.ndarray


def jobs(
    work_s: float, num_nodes: int, said: Interruptions, *, is_gang: bool = True
) -> Found:
    work = np.full((len(said.per_second), 1), work_s)
    return Found(*simulated(work, np.array([num_nodes]), np.array([is_gang]), said))


def daly(
    work_s: float, between_s: float, said: Interruptions, interval_s: float
) -> float:
    """Return the expected time by Daly 2006, equation 20."""
    lost = math.exp((interval_s + said.checkpoint_s) / between_s) - 1
    restarts = math.exp(said.restart_s / between_s)
    return between_s * restarts * lost * work_s / interval_s


@pytest.mark.parametrize("num_nodes", [1, 16, 64])
@pytest.mark.parametrize("checkpoint_s", [10.0, 120.0])
@pytest.mark.parametrize("interval_s", [None, 1200.0])
def test_it_is_dalys_formula_where_that_holds(
    num_nodes: int, checkpoint_s: float, interval_s: float | None
) -> None:
    said = terms(
        200 * HOUR, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=30.0
    )
    work_s = 300 * HOUR
    (used_s,) = said.intervals(np.array([num_nodes]))
    expected = daly(work_s, 200 * HOUR / num_nodes, said, used_s)
    found = jobs(work_s, num_nodes, said).time_s.mean()
    assert found == pytest.approx(expected, rel=0.02)


class OneJob:
    """A job simulated node by node, each with the time of its next loss or return."""

    def __init__(
        self, seed: int, num_nodes: int, every_s: float, wait_s: float
    ) -> None:
        self.luck = random.Random(seed)
        self.every_s, self.wait_s = every_s, wait_s
        self.nodes = num_nodes
        self.missing: set[int] = set()
        self.events = [(self.after(every_s), n) for n in range(num_nodes)]
        heapq.heapify(self.events)
        self.now = self.paid = 0.0

    def after(self, mean_s: float) -> float:
        return self.luck.expovariate(1 / mean_s) if mean_s else 0.0

    def until(self, then: float) -> None:
        self.paid += (then - self.now) * (self.nodes - len(self.missing))
        self.now = then

    def next_event(self) -> None:
        then, node = heapq.heappop(self.events)
        self.until(then)
        is_back = node in self.missing
        self.missing ^= {node}
        mean_s = self.every_s if is_back else self.wait_s
        heapq.heappush(self.events, (self.now + self.after(mean_s), node))

    def gang(self, work_s: float, said: Interruptions, interval_s: float) -> None:
        saved_s, is_first = 0.0, True
        while True:
            while self.missing:
                self.next_event()
            parts = [] if is_first else [(said.restart_s, 0.0)]
            left_s, is_first = work_s - saved_s, False
            while left_s > interval_s:
                parts.append((interval_s + said.checkpoint_s, interval_s))
                left_s -= interval_s
            for length_s, work in [*parts, (left_s, left_s)]:
                then = self.now + length_s
                if self.events[0][0] < then:
                    self.next_event()
                    break
                self.until(then)
                saved_s += work
            else:
                return

    def free(self, work_s: float) -> None:
        left = work_s * self.nodes
        while True:
            here = self.nodes - len(self.missing)
            gap_s = self.events[0][0] - self.now
            if here * gap_s >= left:
                self.until(self.now + left / here)
                return
            left -= here * gap_s
            self.next_event()


@pytest.mark.parametrize(("num_nodes", "every_h"), [(1, 2), (4, 6), (16, 20)])
def test_a_gang_is_as_another_simulation_says(num_nodes: int, every_h: float) -> None:
    said = terms(every_h * HOUR, wait_s=600.0, restart_s=90.0, interval_s=1500.0)
    found = jobs(5 * HOUR, num_nodes, said)
    times, paid = [], []
    for seed in range(DRAWS):
        job = OneJob(seed, num_nodes, every_h * HOUR, 600.0)
        job.gang(5 * HOUR, said, 1500.0)
        times.append(job.now)
        paid.append(job.paid / num_nodes)
    assert found.time_s.mean() == pytest.approx(np.mean(times), rel=0.02)
    assert found.charged_s.mean() == pytest.approx(np.mean(paid), rel=0.02)
    for level in (0.1, 0.5, 0.9):
        expected = np.quantile(times, level)
        assert np.quantile(found.time_s, level) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("num_nodes", "every_h"), [(1, 2), (4, 2), (20, 6)])
def test_workers_of_their_own_are_as_another_simulation_says(
    num_nodes: int, every_h: float
) -> None:
    said = terms(every_h * HOUR, wait_s=1200.0, restart_s=300.0)
    found = jobs(5 * HOUR, num_nodes, said, is_gang=False)
    times = []
    for seed in range(DRAWS):
        job = OneJob(seed, num_nodes, every_h * HOUR, 1500.0)
        job.free(5 * HOUR)
        times.append(job.now)
    assert found.time_s.mean() == pytest.approx(np.mean(times), rel=0.01)
    for level in (0.1, 0.9):
        expected = np.quantile(times, level)
        assert np.quantile(found.time_s, level) == pytest.approx(expected, rel=0.02)


def test_a_worker_is_lost_alone_and_a_gang_as_a_whole() -> None:
    said = terms(4 * HOUR, wait_s=300.0)
    gang = jobs(10 * HOUR, 16, said).time_s.mean()
    assert jobs(10 * HOUR, 16, said, is_gang=False).time_s.mean() < 11 * HOUR < gang


@pytest.mark.parametrize("is_gang", [True, False])
def test_what_is_never_interrupted_only_writes_checkpoints(*, is_gang: bool) -> None:
    said = terms(1e15, num_draws=5, interval_s=HOUR)
    found = jobs(10 * HOUR, 8, said, is_gang=is_gang)
    beside_s = 9 * 60.0 if is_gang else 0.0
    assert found.time_s.ravel() == pytest.approx([10 * HOUR + beside_s] * 5)
    assert found.charged_s == pytest.approx(found.time_s)


@pytest.mark.parametrize("is_gang", [True, False])
@pytest.mark.parametrize("num_nodes", [1, 8])
def test_more_interruptions_never_take_less(num_nodes: int, *, is_gang: bool) -> None:
    every = [terms(h * HOUR, 400, wait_s=200.0) for h in (256, 128, 64, 32, 16, 8, 4)]
    found = [jobs(20 * HOUR, num_nodes, said, is_gang=is_gang) for said in every]
    times = [np.median(each.time_s) for each in found]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["checkpoint_s", "restart_s", "wait_s"])
def test_what_takes_longer_costs_time(name: str) -> None:
    times = [
        jobs(20 * HOUR, 8, terms(20 * HOUR, **{name: seconds})).time_s.mean()
        for seconds in (30.0, 120.0, 480.0)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("every_s", [1800.0, 6 * HOUR, 100 * HOUR])
def test_no_other_interval_loses_less(every_s: float) -> None:
    best = float(best_interval(60.0, np.array([every_s]))[0])
    own, *others = (
        jobs(40 * HOUR, 1, terms(every_s, interval_s=factor * best)).time_s.mean()
        for factor in (1.0, 0.4, 2.5)
    )
    assert own < min(others)


def test_the_best_interval_of_checkpoints_that_take_too_long() -> None:
    assert best_interval(300.0, np.array([100.0, 150.0])).tolist() == [100.0, 150.0]


@pytest.mark.parametrize("checkpoint_s", [120.0, 7200.0])
def test_a_job_that_never_ends_is_cut_off(checkpoint_s: float) -> None:
    said = terms(60.0, 50, checkpoint_s=checkpoint_s, interval_s=600.0)
    found = jobs(10 * HOUR, 4, said)
    assert found.time_s == pytest.approx(MOST_TIMES * 10 * HOUR)
    assert np.all(found.charged_s <= found.time_s)


def test_a_long_job_goes_on_at_its_pace() -> None:
    """More events than are simulated: time grows as the work does."""
    said = terms(2 * HOUR, 400, wait_s=60.0)
    once, thrice = (jobs(w * HOUR, 8, said).time_s.mean() for w in (400, 1200))
    assert thrice == pytest.approx(3 * once, rel=0.02)


def test_nodes_that_wait_are_paid_and_those_that_are_gone_are_not() -> None:
    said = terms(10 * HOUR, wait_s=HOUR, checkpoint_s=1.0)
    one = jobs(20 * HOUR, 1, said)
    assert one.charged_s.mean() < 0.95 * one.time_s.mean()
    many = jobs(20 * HOUR, 8, said)
    assert 0.9 * many.time_s.mean() < many.charged_s.mean() < many.time_s.mean()

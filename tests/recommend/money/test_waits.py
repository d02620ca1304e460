"""Waits in queues that are made up: covered in later weeks, or not said."""

import numpy as np
import pytest

from scalelab.recommend.money.waits import QueueWait
from scalelab.records.afterwards.waits import JobWait

DAY, HOUR = 86400.0, 3600.0
DAYS, LATER, PER_DAY = 30, 14, 8


def job(
    wait_s: float,
    size: int = 8,
    day: float = 0.0,
    limit_s: float | None = DAY,
    *,
    has_started: bool = True,
) -> JobWait:
    return JobWait(
        num_devices=size,
        limit_s=limit_s,
        submitted_s=day * DAY,
        wait_s=wait_s,
        has_started=has_started,
    )


def queue(rng: np.random.Generator, persistence: float) -> np.ndarray:
    """Return waits by day: the queue is as busy as the day before, more or less."""
    days = DAYS + LATER
    busy = np.empty(days)
    busy[0] = rng.normal()
    for day in range(1, days):
        fresh = np.sqrt(1 - persistence**2) * rng.normal()
        busy[day] = persistence * busy[day - 1] + fresh
    return HOUR * np.exp(busy[:, None] + 0.7 * rng.normal(size=(days, PER_DAY)))


@pytest.mark.parametrize("persistence", [0.0, 0.5, 0.9, 0.95])
def test_eight_of_ten_jobs_of_later_weeks_wait_no_longer(persistence: float) -> None:
    rng, covered, below = np.random.default_rng(0), [], []
    for _ in range(60):
        waits = queue(rng, persistence)
        jobs = [job(w, day=day) for day in range(DAYS) for w in waits[day]]
        found = QueueWait.of(jobs, 8, DAY)
        assert found.most_s is not None
        assert found.median_s is not None
        covered.append((waits[DAYS:] <= found.most_s).mean())
        below.append((waits[DAYS:] <= found.median_s).mean())
    assert 0.74 <= np.mean(covered) <= 0.9
    assert 0.4 <= np.mean(below) <= 0.6


def test_a_busy_queue_is_not_covered_by_what_has_started_alone() -> None:
    """Of a hundred jobs that wait alike, those that wait long are still pending."""
    rng = np.random.default_rng(1)
    true = HOUR * rng.exponential(size=2000)
    age = HOUR * rng.uniform(0, 1.5, 2000)
    jobs = [
        job(min(wait, seen), has_started=bool(wait <= seen))
        for wait, seen in zip(true, age, strict=True)
    ]
    found = QueueWait.of(jobs, 8, DAY)
    assert found.median_s == pytest.approx(np.median(true), rel=0.1)
    started = [j.wait_s for j in jobs if j.has_started]
    assert np.median(started) < 0.8 * np.median(true)
    assert found.num_started + found.num_waiting == 2000


def test_waits_that_have_not_ended_have_no_quantile() -> None:
    jobs = [job(60.0) for _ in range(10)]
    jobs += [job(HOUR, has_started=False) for _ in range(30)]
    found = QueueWait.of(jobs, 8, DAY)
    assert (found.median_s, found.most_s) == (None, None)
    assert (found.num_started, found.num_waiting) == (10, 30)


def test_below_ten_started_ones_only_what_was_seen_is_said() -> None:
    found = QueueWait.of([job(60.0 * n) for n in range(1, 10)], 8, DAY)
    assert (found.median_s, found.most_s, found.seen_s) == (None, None, (60.0, 540.0))


def test_jobs_of_like_size_and_limit_count_and_none_beyond_the_observed() -> None:
    small = [job(60.0, size=1) for _ in range(20)]
    short = [job(600.0, limit_s=HOUR) for _ in range(20)]
    long = [job(6000.0, limit_s=DAY) for _ in range(12)]
    every = [*small, *short, *long]
    assert QueueWait.of(every, 8, 1.2 * HOUR).median_s == 600.0
    assert QueueWait.of(every, 8, 0.9 * DAY).median_s == 6000.0
    other = QueueWait.of(every, 8, 60 * DAY)
    assert other.is_of_any_limit
    assert other.num_started == 32
    beyond = QueueWait.of(every, 64, DAY)
    assert (beyond.num_started, beyond.seen_s, beyond.median_s) == (0, None, None)

"""Waits in the queue: what jobs of like size and time limit waited, pending ones too.

References
----------
Kaplan and Meier 1958, *Nonparametric estimation from incomplete observations*, Journal
of the American Statistical Association 53(282), doi 10.2307/2281868.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from scalelab.kinds.resources import TIME
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.question.objective import Constraints
from scalelab.records.afterwards.waits import JobWait, Waits

FEWEST = 10  # jobs that have started, without which no quantile is said
MOST_OF_TEN = 0.8
_LIKE = 2.0  # a factor between sizes, or between time limits, of like jobs
_WEEK_S = 7 * 86400.0
_FEWEST_OF_WEEK = 3
_LEVELS = (0.8, 0.84, 0.88, 0.92, 0.96)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueWait:
    """What jobs like one waited.

    Parameters
    ----------
    num_started, num_waiting
        Jobs that have started, and that still waited when the queue was asked.
    median_s, most_s
        The wait that half of them, and that eight of ten of them, do not exceed; None:
        fewer than ten have started, or so long waits have not ended yet.
    seen_s
        The shortest and the longest wait of those that have started; None: none has.
    is_of_any_limit
        Whether time limits were not looked at: too few jobs had one like it.
    """

    num_started: int
    num_waiting: int
    median_s: float | None
    most_s: float | None
    seen_s: tuple[float, float] | None
    is_of_any_limit: bool

    @classmethod
    def of(cls, jobs: Sequence[JobWait], size: int, limit_s: float | None) -> Self:
        """Return the waits of jobs of about so many devices and such a time limit."""
        alike = [j for j in jobs if _is_like(j.num_devices, size)]
        of_limit = [j for j in alike if limit_s and _is_like(j.limit_s, limit_s)]
        has_enough = sum(job.has_started for job in of_limit) >= FEWEST
        chosen = of_limit if has_enough else alike
        started_s = [job.wait_s for job in chosen if job.has_started]
        has_quantiles = len(started_s) >= FEWEST

        return cls(
            num_started=len(started_s),
            num_waiting=len(chosen) - len(started_s),
            median_s=_quantile(chosen, 0.5) if has_quantiles else None,
            most_s=_quantile(chosen, _level(chosen)) if has_quantiles else None,
            seen_s=(min(started_s), max(started_s)) if started_s else None,
            is_of_any_limit=not has_enough,
        )


def _is_like(one: float | None, other: float) -> bool:
    return one is not None and other / _LIKE < one < other * _LIKE


def _quantile(jobs: Sequence[JobWait], level: float) -> float | None:
    """Return the wait that a share of jobs does not exceed, by Kaplan and Meier."""
    from scipy.stats import CensoredData, ecdf  # which imports for half a second

    started, waiting = (
        [job.wait_s for job in jobs if job.has_started is has_started]
        for has_started in (True, False)
    )
    found = ecdf(CensoredData(uncensored=started, right=waiting)).cdf
    reached = found.probabilities >= level - 1e-9
    return float(found.quantiles[reached.argmax()]) if reached.any() else None


def _level(jobs: Sequence[JobWait]) -> float:
    """Return the level whose quantile eight of ten jobs of another week do not exceed.

    A queue that is busy for weeks is another one than that of the weeks before. So each
    week is left out in turn, and the least level is taken that holds for those left
    out.
    """
    weeks = [*_by_week(jobs)]
    if len(weeks) < 2:
        return MOST_OF_TEN

    for level in _LEVELS:
        shares = []
        for week in weeks:
            others = [job for other in weeks if other is not week for job in other]
            most_s = _quantile(others, level)
            waits = np.array([job.wait_s for job in week if job.has_started])
            shares.append(1.0 if most_s is None else float((waits <= most_s).mean()))
        if np.mean(shares) >= MOST_OF_TEN:
            return level
    return _LEVELS[-1]


def _by_week(jobs: Sequence[JobWait]) -> Iterator[list[JobWait]]:
    """Yield the jobs of each week in which some have started."""
    last_s = max(job.submitted_s for job in jobs)
    by_week: dict[int, list[JobWait]] = {}
    for job in jobs:
        by_week.setdefault(int((last_s - job.submitted_s) // _WEEK_S), []).append(job)
    for week in by_week.values():
        if sum(job.has_started for job in week) >= _FEWEST_OF_WEEK:
            yield week


def waits_noted(known: Waits, row: OutlookRow, limits: Constraints) -> Iterator[Fact]:
    """Note what jobs of about the devices and the time of a row waited, if any did."""
    if known.jobs:
        yield Fact.of(
            "queue_wait",
            date=known.date,
            world_size=row.world_size,
            largest=max(job.num_devices for job in known.jobs),
            has_deadline=TIME.name in limits.limits,
            **asdict(QueueWait.of(known.jobs, row.world_size, row.time_s.hi)),
        )

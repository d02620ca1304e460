"""Plans of several jobs: chained jobs of one training, and a campaign of many runs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import duration
from scalelab.inputs.problems import Option
from scalelab.kinds.resources import RESOURCES, TIME
from scalelab.laws.interval import SEED
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.money.spot import known_seconds
from scalelab.recommend.prediction.outlook import between
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending
from scalelab.site.batch_site import BatchSite
from scalelab.site.profile import Site
from scalelab.site.spot import Spot

_WEIGHTS = np.linspace(0.0, 1.0, 11)  # of time against device time


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Jobs one after the other, each from the last checkpoint of the one before.

    Parameters
    ----------
    limit_s
        The longest time of a job.
    start_up_s
        From the start of a job to its first step.
    checkpoint_s
        The time in which a checkpoint is written at the end of each job but the last.
    """

    limit_s: float
    start_up_s: float
    checkpoint_s: float

    @property
    def work_of_job_s(self) -> float:
        """The work of a job that another one follows; none where it is not positive."""
        return self.limit_s - self.start_up_s - self.checkpoint_s

    def num_jobs(self, work_s: np.ndarray) -> np.ndarray:
        """Return how many jobs do some work, given without any start-up."""
        jobs = np.ceil((work_s - self.checkpoint_s) / self.work_of_job_s)
        return np.maximum(jobs, 1.0)

    def time_s(self, work_s: np.ndarray) -> np.ndarray:
        """Return the time of all jobs together; what they wait for is not in it."""
        jobs = self.num_jobs(work_s)
        return work_s + jobs * self.start_up_s + (jobs - 1) * self.checkpoint_s


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Campaign:
    """Equal runs on a pool of devices, and how many of them side by side.

    Runs are moldable jobs: each is given a number of devices, which it keeps. Plans are
    made of shelves, runs on equally many devices that start together. A dynamic
    programme finds the best of them for times that are known. Then, with times that
    scatter, each run starts as soon as enough devices are free.

    Parameters
    ----------
    num_runs, pool
        The runs, and the devices that there are for all of them.
    sizes : ndarray, shape (n_sizes,)
        Numbers of devices that a run may have, increasing, at most the pool.
    time_s : ndarray, shape (n_draws, n_sizes)
        Expected time of a run, as draws of what is known of it: all runs err together.
    scatter : ndarray, shape (n_sizes,)
        Standard deviation of the logarithm of the time from run to run.

    References
    ----------
    Turek, Wolf and Yu 1992, *Approximate algorithms for scheduling parallelizable
    tasks*, SPAA, doi 10.1145/140901.141909 (shelves, and the bound by area and by the
    longest run).
    """

    num_runs: int
    pool: int
    sizes: np.ndarray
    time_s: np.ndarray
    scatter: np.ndarray

    def side_by_side(self, size: int) -> int:
        """Return how many runs fit on the pool at once."""
        return min(self.pool // size, self.num_runs)

    def plans(self) -> Iterator[Mapping[int, int]]:
        """Yield plans, numbers of runs by their devices: soonest first, then cheaper.

        Each is the best of shelves at another weight of time against device time.
        """
        seen = set()
        for weight in _WEIGHTS:
            plan = self._shelves(float(weight))
            if (key := tuple(sorted(plan.items()))) not in seen:
                seen.add(key)
                yield plan

    def lower_bound_s(self) -> float:
        """Return a time that no plan can beat, by medians of the times of runs.

        All runs together take at least their least device time, and one its least time.
        """
        time_s = np.median(self.time_s, axis=0)
        area_s = self.num_runs * float((self.sizes * time_s).min()) / self.pool
        return max(area_s, float(time_s.min()))

    def makespan_s(self, plan: Mapping[int, int]) -> np.ndarray:
        """Return when the last run of a plan ends, shape (n_draws,).

        It is simulated: the longest runs first, each as soon as devices are free.
        """
        rng, num_draws = np.random.default_rng(SEED + 17), len(self.time_s)
        grain = gcd(*plan)  # devices that are always held together
        free_s = np.zeros((num_draws, self.pool // grain))

        medians = dict(zip(self.sizes, np.median(self.time_s, axis=0), strict=True))
        for size in sorted(plan, key=lambda size: -medians[size]):
            place, width = int(np.searchsorted(self.sizes, size)), size // grain
            for _ in range(plan[size]):
                luck = np.exp(self.scatter[place] * rng.standard_normal(num_draws))
                free_s.sort(axis=1)
                ends_s = free_s[:, width - 1] + self.time_s[:, place] * luck
                free_s[:, :width] = ends_s[:, None]

        return np.asarray(free_s.max(axis=1))

    def _shelves(self, weight: float) -> dict[int, int]:
        """Return the numbers of runs by devices of the best shelves.

        Best is what takes least time, weighed against device time over the pool.
        """
        time_s = np.median(self.time_s, axis=0)
        best, last = [0.0], [(0, 0)]
        for num_left in range(1, self.num_runs + 1):
            options = []
            for size, seconds in zip(self.sizes.tolist(), time_s, strict=True):
                count = min(self.pool // size, num_left)
                share = count * size / self.pool
                cost = seconds * ((1 - weight) + weight * share)
                options.append((best[num_left - count] + cost, (size, count)))
            value, shelf = min(options)
            best.append(value)
            last.append(shelf)

        plan, num_left = Counter[int](), self.num_runs
        while num_left:
            size, count = last[num_left]
            plan[size] += count
            num_left -= count
        return dict(plan)


def chained(
    kinds: Mapping[str, Considered],
    sites: Mapping[str, Site | None],
    *,
    walltime_s: float | None,
    checkpoint_s: float | None,
) -> Iterator[Fact]:
    """Note how many jobs each allocation takes under a limit of the time of a job.

    The limit is the asked one, else that of the site. Without the former, it is noted
    where an allocation takes several jobs.
    """
    given = {} if checkpoint_s is None else {"checkpoint": checkpoint_s}
    found = []
    for label, considered in kinds.items():
        site = sites.get(label)
        of_site_s = site.walltime if isinstance(site, BatchSite) else None
        limit_s = walltime_s or of_site_s
        if limit_s is None:
            continue

        of_site = (site and site.spot) or Spot()
        terms = of_site.model_copy(update=given)
        table = _of_kind(considered, terms, limit_s, is_asked=walltime_s is not None)
        if walltime_s or any(row["num_jobs"] > 1 for row in table["rows"]):
            found.append({"name": label, **table})

    if found:
        yield Fact.of("chained_jobs", kinds=found)


def _of_kind(
    considered: Considered, terms: Spot, limit_s: float, *, is_asked: bool
) -> dict[str, Any]:
    outlook, limits = considered.comparison.printed, considered.limits
    configurations = outlook.frame.to_dict("records")
    measured_s = [*map(considered.knowledge.overhead.start_up_of, configurations)]
    chosen_s = measured_s[considered.comparison.choice.index]
    seconds, sources = known_seconds(terms, chosen_s)

    rows: list[dict[str, Any]] = []
    nodes = outlook.frame["num_nodes"].to_numpy(float)
    for i, size in enumerate(outlook.sizes):
        chain = Chain(
            limit_s=limit_s,
            start_up_s=known_seconds(terms, measured_s[i])[0]["restart"],
            checkpoint_s=seconds["checkpoint"],
        )
        if chain.work_of_job_s <= 0:
            raise SpecError(
                f"a job of {duration(limit_s)} has no time left for work: its start-up "
                f"takes {duration(chain.start_up_s)}, a checkpoint "
                f"{duration(chain.checkpoint_s)}.",
                f"Allow a job more: {Option('walltime', '4h')}.",
                code="walltime_too_short",
            )

        work_s = outlook.spent.time_s[:, [i]] - measured_s[i]
        jobs, time_s = chain.num_jobs(work_s), chain.time_s(work_s)
        spent = limits.spending(time_s, outlook.sizes[[i]], nodes[[i]])
        surely = np.quantile(jobs, limits.confidence, method="higher")
        rows.append(
            {
                "world_size": int(size),
                "num_jobs": float(surely),
                "in_one_job": float((jobs == 1).mean()),
                "time_s": asdict(between(time_s[:, 0], limits.interval)),
                "gpu_hours": asdict(between(spent.gpu_hours[:, 0], limits.interval)),
            }
        )

    in_one = [row for row in rows if row["in_one_job"] >= limits.confidence]
    return {
        "device_word": considered.knowledge.subject.device_word,
        "limit_s": limit_s,
        "is_asked": is_asked,
        "start_up_s": seconds["restart"],
        "checkpoint_s": seconds["checkpoint"],
        "sources": {name: sources[name] for name in ("restart", "checkpoint")},
        "confidence": limits.confidence,
        "rows": rows,
        "smallest": in_one[0]["world_size"] if in_one else None,
    }


def campaign_of(
    considered: Considered, num_runs: int, pool: int, limits: Mapping[str, float]
) -> Fact:
    """Note the plan of a campaign, beside plans that come to mind first.

    ``limits`` are those of the whole campaign. With a deadline the plan is the cheapest
    that surely holds them, else the one that is done soonest.

    Raises
    ------
    SpecError
        No allocation that may be chosen fits into the pool.
    """
    knowledge, outlook = considered.knowledge, considered.comparison.printed
    fits = outlook.is_eligible & (outlook.sizes <= pool)
    fits &= np.isfinite(np.median(outlook.expected_s, axis=0))
    if not fits.any():
        raise SpecError(
            f"{Option('pool', pool)}: no allocation that may be chosen has so few "
            f"devices; the smallest has {int(outlook.sizes.min())}.",
            code="pool_too_small",
        )

    rows = outlook.take(fits)
    interval = considered.limits.interval
    expected_s = knowledge.calibration.applied(rows.expected_s, interval)
    ends_s = np.where(np.isfinite(rows.spent.time_s), rows.spent.time_s, np.nan)
    of_one_run, shared = (
        np.nanvar(np.log(draws), axis=0) for draws in (ends_s, expected_s)
    )
    campaign = Campaign(
        num_runs=num_runs,
        pool=pool,
        sizes=rows.sizes.astype(int),
        time_s=expected_s,
        scatter=np.sqrt(np.maximum(of_one_run - shared, 0.0)),
    )

    whole = replace(considered.limits, limits=limits)
    nodes = rows.frame["num_nodes"].to_numpy(float)
    of_run = whole.spending(expected_s, rows.sizes, nodes)
    basis = dict(zip(campaign.sizes.tolist(), rows.frame["support"], strict=True))
    taken = partial(
        _taken,
        campaign,
        limits=whole,
        of_run=of_run,
        reached=rows.reached,
        basis=basis,
    )
    plans = [taken(plan) for plan in campaign.plans()]
    held = [plan for plan in plans if plan["probability"] >= whole.confidence]
    chosen = min(plans, key=lambda p: (-p["probability"], p["time_s"]["value"]))
    if limits and held:
        cheapest = whole.minimised(of_run.known).field
        chosen = min(held, key=lambda plan: plan[cheapest]["value"])

    smallest, largest = int(campaign.sizes[0]), int(campaign.sizes[-1])
    units = whole.units(knowledge.subject.device_hour_word)
    return Fact.of(
        "campaign",
        num_runs=num_runs,
        pool=pool,
        limits=[*whole.in_words(units)],
        holds=bool(held),
        plan=chosen,
        one_after_another=taken({largest: num_runs}),
        on_the_fewest=taken({smallest: num_runs}),
        lower_bound_s=campaign.lower_bound_s(),
        hour_word=units.device_hour,
        currency=units.currency,
    )


def _taken(
    campaign: Campaign,
    plan: Mapping[int, int],
    limits: Constraints,
    of_run: Spending,
    reached: np.ndarray,
    basis: Mapping[int, str],
) -> dict[str, Any]:
    """Return what a plan takes, by the fields of resources, and its chance."""
    counts = np.array([plan.get(int(size), 0) for size in campaign.sizes])
    amounts = {name: draws @ counts for name, draws in of_run.amounts.items()}
    amounts[TIME.name] = campaign.makespan_s(plan)
    held = limits.held(Spending(amounts)) & reached[:, counts > 0].all(axis=1)
    return {
        "shares": [
            {
                "world_size": size,
                "num_runs": count,
                "side_by_side": min(campaign.side_by_side(size), count),
                "basis": basis[size],
            }
            for size, count in sorted(plan.items())
        ],
        "probability": float(held.mean()),
        **{
            RESOURCES[name].field: asdict(between(draws, limits.interval))
            for name, draws in amounts.items()
        },
    }

"""The campaign of an answer: many runs of its job on a pool of devices."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.wording import Option
from scalelab.kinds.resources import RESOURCES, TIME
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.money.campaigns import Campaign
from scalelab.recommend.prediction.outlook import between
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending


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
            f"devices; the smallest has {int(outlook.sizes.min())}."
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

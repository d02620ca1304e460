"""Chained jobs beside each allocation: how many a time limit makes of a training."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import duration
from scalelab.inputs.wording import Option
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.money.chains import Chain
from scalelab.recommend.money.spot import known_seconds
from scalelab.recommend.prediction.outlook import between
from scalelab.site.batch_site import BatchSite
from scalelab.site.profile import Site
from scalelab.site.spot import Spot


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

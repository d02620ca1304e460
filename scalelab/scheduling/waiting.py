"""Why trials wait, for those who ask for the status of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scalelab.records.job_list import JobLine
from scalelab.scheduling.pool import Pool


def why_waiting(pool: Pool, jobs: Sequence[JobLine]) -> list[str]:
    """Return one sentence per allocation that lacks nodes, and one for the others.

    Parameters
    ----------
    pool
        The nodes that are up, and the trials that wait.
    jobs
        The batch jobs that have not ended.
    """
    placer = pool.placer
    waiting = Counter(request.trial.allocation for request in placer.waiting())
    lacking = [each for each in waiting if not placer.has_room(each)]
    sentences = [
        f"{_number(waiting[each], 'trial')} for {_number(each.num_nodes, 'node')} x "
        f"{_number(each.devices_per_node[0], 'device')}: {_what_there_is(pool, jobs)}."
        for each in sorted(lacking, key=lambda each: each.world_size)
    ]
    if len(lacking) < len(waiting):
        # Without their number, which changes all the time.
        others = "the other trials" if lacking else "trials"
        sentences.append(f"{others} for devices that are in use.")
    return sentences


def _what_there_is(pool: Pool, jobs: Sequence[JobLine]) -> str:
    parts = [f"{_number(len(pool.nodes), 'node')} up"]
    for state, words in (("running", "starting"), ("pending", "in the queue")):
        those = [job for job in jobs if job.state == state]
        if those:
            reasons = dict.fromkeys(job.reason for job in those if job.reason)
            why = f" ({', '.join(reasons)})" if reasons else ""
            parts.append(f"{sum(job.num_nodes for job in those)} {words}{why}")
    return ", ".join(parts)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""Rates of a row beside its samples per second, where the job says what a sample is.

References
----------
Chowdhery et al. 2022, *PaLM*, appendix B (model FLOPs utilisation).
"""

from __future__ import annotations

from scalelab.experiment.job import Job
from scalelab.inputs.numerals import Interval


def tokens_per_s(
    throughput_samples_per_s: Interval, job: Job | None, recorded: float | None
) -> Interval | None:
    """Return tokens per second; None where it is unknown how many a sample has."""
    tokens = (job and job.sequence_length) or recorded
    return None if tokens is None else _times(throughput_samples_per_s, tokens)


def flops_utilization(
    throughput_samples_per_s: Interval,
    world_size: int,
    job: Job | None,
    recorded: float | None,
) -> Interval | None:
    """Return the model's operations per second over the peak of all devices.

    What a device recomputes, or does beside the model's own operations, does not count.
    None where the operations or the peak are unknown.
    """
    if job is None or job.device_peak_flops is None:
        return None
    flops = job.flops_per_sample or recorded
    if flops is None:
        return None
    share = flops / (job.device_peak_flops * world_size)
    return _times(throughput_samples_per_s, share)


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(
        value=interval.value * factor,
        lo=interval.lo * factor,
        hi=interval.hi * factor,
    )

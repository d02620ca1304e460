"""What the steps of a whole job show, wherever they were seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSteps:
    """What was seen of the steps of a job, or in the same way of a trial.

    What is None was not seen.

    Parameters
    ----------
    num_steps
        Optimiser steps that were made.
    step_time_s
        Mean seconds from one step to the next, without what is not of training: long
        pauses and evaluations.
    global_batch_size
        Samples of a step over all ranks.
    data_wait_s
        Seconds for which the first rank waited for the batches of a step, a mean:
        where batches are loaded ahead, few steps wait for all.
    forward_s
        Seconds from the last batch to the backward pass, by host: medians over the
        steps and then over the ranks of the host. None of it waits for other ranks.
    began_s, ended_s
        The first step and the last, since 1970.
    peak_bytes
        The most memory of any rank: of its device, or on CPUs of its process.
    code
        A hash of the program's own files.
    """

    num_steps: int
    step_time_s: float | None
    global_batch_size: float | None = None
    data_wait_s: float | None = None
    forward_s: Mapping[str, float] = field(default_factory=dict)
    began_s: float | None = None
    ended_s: float | None = None
    peak_bytes: int | None = None
    code: int | None = None

"""The steps of a whole job as the probe has seen them, and of a trial in the same way.

A trial ends when its mean is known well enough; a job runs for hours, with checkpoints,
evaluations and pauses, which are left out here, of both.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from scalelab.experiment.trial import Trial
from scalelab.launch.command.probe.samples import samples_of_step
from scalelab.launch.command.probe.steps import ProbedSteps
from scalelab.launch.command.probe.streams import Draws, ProbedProcess
from scalelab.records.afterwards.job_steps import JobSteps

# Intervals that are so many times as long as usual hold a checkpoint or a pause.
_LONG = 5.0
_FEWEST_STEPS = 4


def read_job_steps(folder: Path, trial: Trial) -> JobSteps | None:
    """Read the streams of a folder; None: they hold no steps of a training.

    Parameters
    ----------
    folder
        With a folder of streams for each node, or for all of them.
    trial
        What the steps are told from others by: accumulation, and warm-up steps.
    """
    probed = ProbedSteps(folder, trial, num_processes=1)
    probed.take([], 0.0, has_changed=True, is_over=True)
    times_s = _step_times(probed)
    if len(times_s) < _FEWEST_STEPS:
        return None

    leader, optimizer = probed.leader, probed.optimizer
    warmup_steps = trial.measurement.warmup_steps
    ranks = [p for p in probed.processes if len(p.steps[optimizer]) > 1]
    drawn = [p.draws_of_steps(optimizer, probed.training, warmup_steps) for p in ranks]
    waits = [draws.waited_s for draws in drawn[ranks.index(leader)]]
    peaks = [process.note.get("peak_bytes", 0) for process in ranks]
    first, *_, last = leader.steps[optimizer]
    since = leader.since_1970_s

    return JobSteps(
        num_steps=last.number,
        step_time_s=fmean(times_s),
        global_batch_size=_samples_of_all(drawn),
        data_wait_s=fmean(waits) if waits else None,
        forward_s=_forward_by_host(ranks, optimizer, warmup_steps),
        began_s=None if since is None else since + first.at_s,
        ended_s=None if since is None else since + last.at_s,
        peak_bytes=max(peaks) or None,
        code=leader.notes[optimizer].get(1, {}).get("code"),
    )


def _samples_of_all(drawn: Sequence[Sequence[Draws]]) -> float | None:
    """Return what all ranks drew for a step; None where one of them does not tell."""
    of_ranks = [samples_of_step(rank) for rank in drawn]
    return sum(map(float, filter(None, of_ranks))) if all(of_ranks) else None


def _step_times(probed: ProbedSteps) -> Sequence[float]:
    """Return the seconds of the first rank's steps that are of training alone."""
    if probed.log is None:
        return []
    times_s = probed.log.intervals.step_times_s().tolist()
    usual_s = median(times_s) if times_s else 0.0
    return [time_s for time_s in times_s if time_s <= _LONG * usual_s]


def _forward_by_host(
    ranks: Sequence[ProbedProcess], optimizer: int, warmup_steps: int
) -> dict[str, float]:
    by_host = defaultdict[str, list[float]](list)
    for process in ranks:
        steps = [s for s in process.steps[optimizer] if s.number >= warmup_steps]
        forward = [
            step.forward_s / (step.number - before.number)
            for before, step in pairwise(steps)
        ]
        if host := process.note.get("host"):
            by_host[host] += [median(forward)] if any(forward) else []
    return {host: median(found) for host, found in by_host.items() if found}

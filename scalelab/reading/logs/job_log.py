"""The log of a whole job: its steps, and the step time and batch that it prints."""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from scalelab.errors import SpecError
from scalelab.experiment.program import MetricsSource
from scalelab.experiment.trial import Trial
from scalelab.reading.logs.doubt import LogWitness
from scalelab.reading.logs.lines import Report, ReportReader
from scalelab.reading.logs.match import match
from scalelab.reading.vocabulary import SAMPLES
from scalelab.records.afterwards.job_steps import JobSteps
from scalelab.records.plain_files import opened

_MOST_BYTES = 2**30
_SAMPLES = rf"\b(?:{'|'.join(SAMPLES)})[ :=]+(?P<samples>\d+)\b(?! */)"
# of the time of its steps, that of a whole job; and how exact both are
_MOST_BESIDE, _ROUNDING = 1.8, 1.1


def read_job_log(
    path: Path, source: MetricsSource | None, trial: Trial, elapsed_s: float | None
) -> JobSteps:
    """Read what a job has printed.

    Parameters
    ----------
    source
        What reads the trials of the same program; None, or where it finds no steps in
        this file: what is found in it as ``scalelab init`` does.
    trial
        The job as a trial: its batch, and how many ranks it has.
    elapsed_s
        The time of the whole job, by which it is told whether a rate is of one rank or
        of all; None: not known.

    Raises
    ------
    SpecError
        The file cannot be read, or no steps are found in it.
    """
    try:
        with opened(path, _MOST_BYTES) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error

    reports = [] if source is None else _reports(lines, source, trial)
    if not _steps(reports):
        found = match(path)
        if found.preset is not None:
            preset = found.preset
            source = MetricsSource(regex=preset.regex, evaluation=preset.evaluation)
        elif found.expression is not None:
            source = MetricsSource(regex=(found.expression, _SAMPLES))
        reports = [] if source is None else _reports(lines, source, trial)

    steps = _steps(reports)
    if not steps:
        raise SpecError(
            f"No steps are found in {path}.",
            "Give the log of a job that prints its steps, or the job's id.",
        )

    witness = LogWitness(trial)
    for report in reports:
        witness.take(report, report.step if report.step is not None else steps[0] + 1)

    step_time_s = _by_clock(reports)
    if step_time_s is None:
        possible = witness.possible_step_times_s(after_steps=1)
        whole_s = None if elapsed_s is None else elapsed_s / _made(steps)
        step_time_s = _meant(possible, whole_s)
    return JobSteps(
        num_steps=_made(steps),
        step_time_s=step_time_s,
        global_batch_size=_samples_of_step(reports),
    )


def _meant(possible: Collection[float], whole_s: float | None) -> float | None:
    """Return the one step time that agrees with the time of the whole job per step.

    The latter holds start-up and pauses, too. None where several may be meant.
    """
    if whole_s is not None:
        least_s = whole_s / _MOST_BESIDE if len(possible) > 1 else 0.0
        possible = [s for s in possible if least_s <= s <= whole_s * _ROUNDING]
    return next(iter(possible)) if len(possible) == 1 else None


def _reports(
    lines: Iterable[bytes], source: MetricsSource, trial: Trial
) -> list[Report]:
    reader = ReportReader(
        source,
        trial.gradient_accumulation_steps,
        trial.global_batch_size,
        trial.data_parallel_size,
    )
    return [report for line in lines if (report := reader.read(line))]


def _steps(reports: Iterable[Report]) -> list[int]:
    """Return the steps of a training, increasing; several ranks may print them."""
    steps = list[int]()
    for report in reports:
        if report.step is not None and not report.is_evaluation:
            steps += [report.step] if not steps or report.step > steps[-1] else []
    return steps


def _made(steps: Sequence[int]) -> int:
    """Return how many steps were made, also by a training that goes on from others."""
    rises = [later - step for step, later in pairwise(steps)] or [steps[0]]
    return steps[-1] - steps[0] + min(steps[0], round(median(rises)))


def _by_clock(reports: Sequence[Report]) -> float | None:
    """Return seconds per step by the clock that a program reports beside its steps."""
    at = [(r.step, r.t) for r in reports if r.step is not None and r.t is not None]
    times_s = [
        (later_s - time_s) / (later - step)
        for (step, time_s), (later, later_s) in pairwise(at)
        if later > step and later_s > time_s
    ]
    return median(times_s) if times_s else None


def _samples_of_step(reports: Sequence[Report]) -> float | None:
    """Return samples of a step where they are counted apart from the steps."""
    at = [
        (r.step, r.samples)
        for r in reports
        if r.step is not None and r.samples is not None and not r.of_samples
    ]
    rises = [
        (more - samples) / (later - step)
        for (step, samples), (later, more) in pairwise(at)
        if later > step and more > samples
    ]
    return median(rises) if rises else None

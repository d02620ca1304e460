"""The log of a whole job: its steps, and the step time and batch that it prints."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import BinaryIO, NamedTuple
from zlib import crc32

from scalelab.errors import SpecError
from scalelab.experiment.program import MetricsSource
from scalelab.experiment.trial import Trial
from scalelab.inputs.plain_files import opened_by_name
from scalelab.reading.logs.doubt import LogWitness
from scalelab.reading.logs.lines import ReportReader
from scalelab.reading.logs.match import LOSS, match_content
from scalelab.reading.vocabulary import SAMPLES
from scalelab.records.afterwards.job_steps import JobSteps

_SAMPLE_BYTES = 1 << 20
# Rates are read from the first lines, and later from one line in so many: the mean
# of a long log is known without the others.
_ALL_RATES, _ONE_IN = 1 << 11, 127
_SAMPLES = rf"\b(?:{'|'.join(SAMPLES)})[ :=]+(?P<samples>\d+)\b(?! */)"
# of the time of its steps, that of a whole job; and how exact both are
_MOST_BESIDE, _ROUNDING = 1.8, 1.1


class _LogSteps(NamedTuple):
    witness: LogWitness
    steps: list[int]  # they increase
    clock: list[tuple[int, float]]  # seconds by the program's clock, at a step
    samples: list[tuple[int, int]]  # samples so far, at a step


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
        with opened_by_name(path, math.inf) as file:
            source = _source_of(file, source, trial)
            file.seek(0)
            found = _read(_lines(file), source, trial)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}.", code="unreadable"
        ) from error

    if not found.steps:
        raise SpecError(
            f"No steps are found in {path}.",
            "Give the log of a job that prints its steps, or the job's id.",
            code="no_steps",
        )

    step_time_s = _by_clock(found.clock)
    if step_time_s is None:
        possible = found.witness.possible_step_times_s(after_steps=1)
        whole_s = None if elapsed_s is None else elapsed_s / _made(found.steps)
        step_time_s = _meant(possible, whole_s)
    return JobSteps(
        num_steps=_made(found.steps),
        step_time_s=step_time_s,
        global_batch_size=_samples_of_step(found.samples),
    )


def _source_of(
    file: BinaryIO, source: MetricsSource | None, trial: Trial
) -> MetricsSource | None:
    """Return what reads the steps of a log, by its first part.

    That is ``source`` if it finds steps there, else what the part itself shows.
    """
    sample = file.read(_SAMPLE_BYTES)
    if _read(sample.splitlines(), source, trial).steps:
        return source

    found = match_content(sample)
    if found.preset is not None:
        preset = found.preset
        return MetricsSource(regex=preset.regex, evaluation=preset.evaluation)

    if found.expression is None:
        return source

    steps = found.expression.removesuffix(LOSS)
    counts_samples = re.search(_SAMPLES.encode(), sample) is not None
    return MetricsSource(regex=(steps, _SAMPLES) if counts_samples else (steps,))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log but those longer than a sample of it."""
    rest = b""
    while chunk := file.read(_SAMPLE_BYTES):
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        yield from lines
        rest = rest if len(rest) <= _SAMPLE_BYTES else b""
    yield rest


def _meant(possible: Collection[float], whole_s: float | None) -> float | None:
    """Return the one step time that agrees with the time of the whole job per step.

    The latter holds start-up and pauses, too. None where several may be meant.
    """
    if whole_s is not None:
        least_s = whole_s / _MOST_BESIDE if len(possible) > 1 else 0.0
        possible = [s for s in possible if least_s <= s <= whole_s * _ROUNDING]
    return next(iter(possible)) if len(possible) == 1 else None


def _read(
    lines: Iterable[bytes], source: MetricsSource | None, trial: Trial
) -> _LogSteps:
    """Read the steps of a training; several ranks may print them."""
    found = _LogSteps(LogWitness(trial), [], [], [])
    if source is None:
        return found

    reader = ReportReader(
        source,
        trial.gradient_accumulation_steps,
        trial.global_batch_size,
        trial.data_parallel_size,
    )
    for number, line in enumerate(lines):
        report = reader.read(
            line, reads_rates=number < _ALL_RATES or crc32(line) % _ONE_IN == 0
        )
        if report is None:
            continue

        step = report.step
        if report.rates:  # those of a line without a step are not of a first step
            found.witness.take(report, 2 if step is None else step)
        if step is None:
            continue

        if report.t is not None:
            found.clock.append((step, report.t))
        if report.samples is not None and not report.of_samples:
            found.samples.append((step, report.samples))

        if not report.is_evaluation:
            _add(found.steps, step)

    return found


def _add(steps: list[int], step: int) -> None:
    """Add a step that is later; a first one that is not said how many there will be."""
    if len(steps) == 1 and step < steps[0]:
        steps.clear()
    if not steps or step > steps[-1]:
        steps.append(step)


def _made(steps: Sequence[int]) -> int:
    """Return how many steps were made, also by a training that goes on from others."""
    rises = [later - step for step, later in pairwise(steps)] or [steps[0]]
    return steps[-1] - steps[0] + min(steps[0], round(median(rises)))


def _by_clock(clock: Sequence[tuple[int, float]]) -> float | None:
    """Return seconds per step by the clock that a program reports beside its steps."""
    times_s = [
        (later_s - time_s) / (later - step)
        for (step, time_s), (later, later_s) in pairwise(clock)
        if later > step and later_s > time_s
    ]
    return median(times_s) if times_s else None


def _samples_of_step(counts: Sequence[tuple[int, int]]) -> float | None:
    """Return samples of a step where they are counted apart from the steps."""
    rises = [
        (more - samples) / (later - step)
        for (step, samples), (later, more) in pairwise(counts)
        if later > step and more > samples
    ]
    return median(rises) if rises else None

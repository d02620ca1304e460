"""The job afterwards: held against the answer of a run, and what it used."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, log
from pathlib import Path
from typing import Any

import pandas as pd

from scalelab.cluster.batch.queue import client_class, system_here
from scalelab.errors import ClusterError, SpecError, StoreError
from scalelab.experiment.measure import DEFAULT_METRICS
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.lines import between_words, one_line
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option, shown
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, BatchSystem
from scalelab.launch.command.probe.job_steps import read_job_steps
from scalelab.reading.logs.job_log import read_job_log
from scalelab.recommend.afterwards.comparing import FollowedJob, compare_job
from scalelab.recommend.afterwards.promise import Promise, promise_of, recording_of
from scalelab.recommend.afterwards.words import followed_lines, usage_lines
from scalelab.recommend.answer.rows import plain_values
from scalelab.recommend.question.devices import has_value
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.followed import (
    STEP_TIME,
    KeptJob,
    KeptValue,
    followed_jobs,
    keep_followed,
)
from scalelab.records.afterwards.job_steps import JobSteps
from scalelab.records.attempt import read_spec, storing
from scalelab.records.columns import OPTION_PREFIX
from scalelab.session.export import write_rows
from scalelab.session.recommending import RecommendingRun

_WIDTH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """A job afterwards: its title, what it was beside the answer, and what it used.

    Parameters
    ----------
    accounted
        What the batch system accounts; None: it does not know the job, or was not
        asked.
    followed
        The job beside the answer; None: no run was named.
    notes
        What could not be known, and where the job was kept.
    """

    job: str
    accounted: AccountedJob | None
    followed: FollowedJob | None
    notes: tuple[str, ...] = field(default=())

    @property
    def lines(self) -> list[str]:
        """The report in lines, as ``scalelab follow`` prints it."""
        blocks = [[self.title]]
        if self.followed is not None:
            blocks.append(followed_lines(self.followed))
        if self.accounted is not None:
            blocks.append(usage_lines(self.accounted))
        blocks.append([*self.notes])
        return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")

    @property
    def title(self) -> str:
        """What the job was, and how it ended, in a sentence."""
        job, followed = self.accounted, self.followed
        words = [self.job]
        if job is not None:
            devices = counted(job.num_devices, "GPU" if job.num_gpus else "core")
            name = f" ({one_line(job.name)})" if job.name else ""
            state = job.state.lower().replace("_", " ")
            where = f"{devices} of {counted(job.num_nodes, 'node')}"
            words = [f"Job {self.job}{name} on {where}: {state}"]
        if followed is not None and followed.steps is not None:
            steps = followed.steps
            words.append(counted(steps.num_steps, "step"))
            if steps.global_batch_size:
                words.append(f"global batch {steps.global_batch_size:,.0f}")
        return f"{', '.join(words)}."

    def __repr__(self) -> str:
        return "\n".join(between_words(line, _WIDTH) for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values: dict[str, Any] = {"job": self.job, "text": self.lines}
        if self.accounted is not None:
            values["accounted"] = plain_values(asdict(self.accounted))
        if self.followed is not None:
            values |= plain_values(asdict(self.followed))
            for shown_value, compared in zip(
                values["compared"], self.followed.compared, strict=True
            ):
                shown_value["judgement"] = compared.judgement
        return values


def used_by(job: str) -> JobReport:
    """Return what a job used of what it asked for."""
    if _is_log(job):
        raise SpecError(
            f"{job} is a file. A log is held against the answer of a run: "
            f"scalelab follow RUN {job}.",
            code="log_without_run",
        )
    return JobReport(job=job, accounted=_accounted([job])[job], followed=None)


def follow_job(
    run: RecommendingRun, job: str, log: Path | None, question: Mapping[str, Any]
) -> JobReport:
    """Return how a job went: beside the answer of a run, and what it used."""
    is_log = log is None and _is_log(job)
    log = Path(job) if is_log else log
    recording = None if is_log else recording_of(run.directory, job)
    accounted, notes = None, list[str]()
    if not is_log:
        try:
            site = run.batch_site
            system = None if site is None else site.batch_system
            accounted = _accounted([job], system)[job]
            # a task of an array has a number of its own in its environment
            recording = recording_of(run.directory, accounted.job_id)
        except ClusterError as error:
            if recording is None and log is None:
                raise
            notes.append(f"What it used is not known: {error}")

    promise = _promise(run, recording, accounted, question)
    printed = accounted.log if accounted else None
    steps = _steps(run, promise, recording, log, accounted)
    if steps is None:
        where = f" in {printed}" if printed else ""
        notes.append(f"No steps of it were seen{where}. Name its {Option('log')}.")
    elif steps.step_time_s is None:
        notes.append(
            "Its log tells no step time, or one that may be of one rank or of all."
        )

    followed = compare_job(promise, steps, accounted, [*_trials_alike(run, promise)])
    notes += _kept(run, job, followed)
    return JobReport(
        job=job, accounted=accounted, followed=followed, notes=tuple(notes)
    )


def _is_log(job: str) -> bool:
    """Tell whether a job is named by its log; else it must be an id.

    A number is an id, also where a file has that name.
    """
    if not job.isdecimal() and os.path.isfile(job):
        return True
    if not any(system.job_id_form.fullmatch(job) for system in BATCH_SYSTEMS):
        raise SpecError(
            f"{shown(job)} is neither a file nor the id of a job, such as 4711 or "
            "4711_3.",
            code="neither_log_nor_job",
        )
    return False


def _steps(
    run: RecommendingRun,
    promise: Promise,
    recording: Path | None,
    log: Path | None,
    accounted: AccountedJob | None,
) -> JobSteps | None:
    """Return what was seen of a job: inside of it, else in its log.

    ``log`` is the one that was named; else it is the one that the batch system knows.
    """
    trial, elapsed_s, printed = _trial(promise), None, None
    if accounted is not None:
        elapsed_s, printed = accounted.elapsed_s, accounted.log
    steps = None if recording is None else read_job_steps(recording, trial)
    if steps is not None or (log is None and printed is None):
        return steps

    source = None
    if run.experiment is not None and run.experiment.command:
        read = (run.experiment.metrics or DEFAULT_METRICS).source()
        source = None if read.path else read
    path = log or Path(printed or "")
    try:
        return read_job_log(path, source, trial, elapsed_s)
    except SpecError:
        if log is not None:
            raise
        return None  # one that nobody named may tell nothing


def _accounted(
    job_ids: Sequence[str], system: BatchSystem | None = None
) -> dict[str, AccountedJob]:
    """Return what a batch system accounts for jobs, by id.

    By default the batch system that is here and has ids of their form.

    Raises
    ------
    ClusterError
        There is none here, or it does not know one of them.
    """
    system = system or system_here(job_ids=job_ids)
    found = client_class(system).accounted(job_ids)
    unknown = [job_id for job_id in job_ids if job_id not in found]
    if unknown:
        raise ClusterError(
            f"{system.name} does not know job {', '.join(map(shown, unknown))}. Give "
            "the id that the submission has printed, or the log of the job.",
            code="unknown_job",
        )
    return found


def _promise(
    run: RecommendingRun,
    recorded: Path | None,
    accounted: AccountedJob | None,
    question: Mapping[str, Any],
) -> Promise:
    """Return what was said of the job when its script was printed, or is said now."""
    if recorded is not None and not question:
        if kept := promise_of(recorded):
            return kept

    counts = question.get("gpus") or ()
    if not counts and accounted is not None and accounted.num_gpus:
        counts = [accounted.num_gpus]
    answer = run.recommend(**{**question, "gpus": counts or None})
    sizes = [*counts] if isinstance(counts, Sequence) else [counts]
    rows = [row for row in answer.alike if row.world_size in sizes]
    return Promise.of(answer, rows[0] if rows else answer.chosen, run.name)


def _trial(promise: Promise) -> Trial:
    """Return a trial that does the steps of the promised job."""
    local, world = promise.local_batch_size, promise.world_size
    on_node = -(-world // promise.num_nodes)
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload=promise.workload,
        allocation=Allocation.packed(world, devices_on_node=on_node),
        local_batch_size=local,
        gradient_accumulation_steps=max(1, promise.global_batch_size // local // world),
    )


def _trials_alike(run: RecommendingRun, promise: Promise) -> Iterator[JobSteps]:
    """Yield what was seen of the trials that are most like a job.

    They have its local batch and settings, and of the measured numbers of devices the
    nearest.
    """
    rows = run.observations
    alike = rows[
        rows["outcome"].eq(Outcome.COMPLETED)
        & rows["local_batch_size"].eq(promise.local_batch_size)
    ]
    for name, value in promise.settings.items():
        column = name if name in alike.columns else OPTION_PREFIX + name
        if column in alike.columns:
            alike = alike[has_value(alike, column, value)]
    distances = (alike["world_size"].astype(float) / promise.world_size).map(log).abs()
    nearest = alike[distances == distances.min()]
    for name, number in zip(nearest["trial_id"], nearest["attempt"], strict=True):
        files = run.attempt_files(name, number)
        with suppress(StoreError):
            spec = read_spec(files)
            if spec and (steps := read_job_steps(files.probe, spec.trial)):
                yield steps


def _kept(run: RecommendingRun, job: str, followed: FollowedJob) -> list[str]:
    """Keep a job in the history, and say so; one without a step time is not kept."""
    promise, values = followed.promise, {}
    for compared in followed.compared:
        ends = compared.predicted
        hi = ends.hi if isfinite(ends.hi) else None
        value = KeptValue(predicted=ends.value, lo=ends.lo, hi=hi, true=compared.true)
        values[compared.name] = value

    if STEP_TIME not in values:
        return []

    kept = KeptJob(
        job=str(Path(job).resolve()) if _is_log(job) else job,
        run=run.name,
        workload=promise.workload,
        device_name=promise.device_name,
        configuration=promise.configuration,
        mass=promise.mass,
        widened_by=promise.widened_by,
        was_as_asked=followed.was_as_asked,
        values=values,
        causes=tuple(cause.kind for cause in followed.causes),
    )
    if any(_is_same(kept, known) for known in followed_jobs(run.history_directory)):
        return []
    try:
        path = keep_followed(run.history_directory, kept)
    except StoreError as error:
        return [f"It was not kept for later answers: {error}"]
    learns = "Later answers learn from it"
    if not followed.was_as_asked:
        learns = "It teaches later answers nothing, as it was another job"
    return [f"{learns}: {path}"]


def _is_same(job: KeptJob, known: KeptJob) -> bool:
    # its answer may be less sure by now, for the job itself
    true, known_true = (j.values[STEP_TIME].true for j in (job, known))
    return (job.run, job.job, true) == (known.run, known.job, known_true)


def write_jobs_table(
    job_ids: Sequence[str], path: Path, constant: Mapping[str, Scalar]
) -> Path:
    """Write jobs that ran as a table to import: a row for each, by its log.

    ``constant`` may say their ``local_batch_size`` or ``global_batch_size``; else the
    logs must count samples beside steps.

    Raises
    ------
    ClusterError
        The batch system does not know one of them.
    SpecError
        No log tells a step time and a batch.
    StoreError
        The table cannot be written.
    """
    if not job_ids:
        raise SpecError(
            "No job is named. Give the ids of one or several.", code="no_job_to_import"
        )

    batches = [_stated(constant, n) for n in ("local_batch_size", "global_batch_size")]
    rows, problems = [], []
    for job_id, job in _accounted(job_ids).items():
        try:
            rows.append(_row_of(job, *batches))
        except SpecError as error:
            problems.append(f"{job_id}: {error.message}")

    if not rows:
        raise SpecError(
            f"No job tells a step time. {' '.join(problems)} A job's log must print "
            "its steps, and their time or rate; what batch they are of, "
            f"{Option('constant', 64, key='local_batch_size')} says.",
            code="no_step_time_in_jobs",
        )

    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return write_rows(pd.DataFrame(rows), path)


def _stated(constant: Mapping[str, Scalar], name: str) -> int | None:
    value = str(constant.get(name, ""))
    if value and not (value.isdecimal() and int(value)):
        wanted = Option("constant", 64, key=name)
        raise SpecError(
            f"{name}={shown(value)} is no count. Write {wanted}.", code="not_a_count"
        )
    return int(value) if value else None


def _row_of(
    job: AccountedJob, local: int | None, of_all_ranks: int | None
) -> dict[str, Any]:
    if job.log is None:
        raise SpecError(
            "its log is not where the batch system says.", code="no_step_time_in_jobs"
        )

    size = job.num_devices
    if of_all_ranks is not None:
        local = of_all_ranks // size
    allocation = Allocation.packed(size, devices_on_node=-(-size // job.num_nodes))
    trial = Trial(
        kind=TrialKind.THROUGHPUT,
        workload=job.name,
        allocation=allocation,
        local_batch_size=local or 1,
    )
    steps = read_job_log(Path(job.log), None, trial, job.elapsed_s)
    if local is None and steps.global_batch_size:  # what a rate counts is known now
        local = round(steps.global_batch_size / size)
        trial = replace(trial, local_batch_size=max(local, 1))
        steps = read_job_log(Path(job.log), None, trial, job.elapsed_s)
    if not local or steps.step_time_s is None:
        raise SpecError(
            f"{job.log} tells no step time, or no batch.", code="no_step_time_in_jobs"
        )

    return {
        "job": job.job_id,
        "name": job.name,
        "device_type": "cuda" if job.num_gpus else "cpu",
        "device_name": job.gpu_type or "",
        "world_size": size,
        "num_nodes": job.num_nodes,
        "local_batch_size": local,
        "step_time_s": steps.step_time_s,
        "steps": steps.num_steps,
        "queue_wait_s": job.queue_wait_s,
    }

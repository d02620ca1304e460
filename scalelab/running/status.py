"""The status of a run: what has ended, what runs and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.experiment.fingerprint import words_of_run
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import is_canary
from scalelab.inputs.outcome import Outcome
from scalelab.plan.memory_limits import MemoryLimit, memory_limits
from scalelab.plan.source import Observation
from scalelab.plan.tracked import source_of
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobList
from scalelab.records.run_reader import RunReader


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """The status of a run.

    Parameters
    ----------
    driver
        Who runs the sweep at the moment, in words; None: nobody.
    num_missing
        Trials to come; None where that is not known: for an imported table, an ``auto``
        batch that is still looked for, a source of trials that does not say, or a site
        that this machine is not.
    reasons
        Why trials ended without a measurement, or theirs is not used because the
        program's own rate contradicts it, one sentence each.
    """

    outcomes: Mapping[str, int]
    used_gpu_s: float
    device_hour_word: str
    driver: str | None
    running: tuple[tuple[str, int], ...]
    num_missing: int | None
    reasons: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    has_canaries: bool = False
    memory_limits: tuple[MemoryLimit, ...] = ()


def status_of(reader: RunReader, experiment: Experiment | None) -> RunStatus:
    """Return the status of a run."""
    rows = reader.rows()
    finished = reader.finished(rows)
    ended = {(row["trial_id"], row["attempt"]) for row in rows}
    job_list = JobList.read(reader.directory / CLUSTER_DIRECTORY)
    return RunStatus(
        outcomes=Counter(str(row["outcome"]) for row in finished),
        used_gpu_s=sum(row.get("allocated_gpu_s") or 0.0 for row in rows),
        device_hour_word=words_of_run(reader.fingerprint, rows).hour,
        driver=reader.driver,
        running=tuple(key for key in reader.running() if key not in ended),
        num_missing=_num_missing(experiment, finished) if experiment else None,
        reasons=tuple(
            f"{row['trial_id']}: {row['outcome']}. {why}".rstrip()
            for row in finished
            if (why := _why_unused(row)) is not None
        ),
        jobs=tuple(map(str, job_list.jobs)),
        waiting=tuple(job_list.waiting),
        has_canaries=any(is_canary(row["repeat"]) for row in finished),
        memory_limits=memory_limits(finished),
    )


def _why_unused(row: Observation) -> str | None:
    """Return why a trial is no measurement, or none that counts; None: it is one."""
    if not Outcome(row["outcome"]).is_measurement:
        return row["reason"] or ""
    ours, own = row.get("step_time_s"), row.get("reported_step_time_s")
    if not (ours and own and "rate_disagrees" in (row.get("validity") or ())):
        return None
    batch = row["global_batch_size"]
    return (
        f"Not used: the program prints {batch / own:.3g} samples/s, ScaleLab read "
        f"{batch / ours:.3g}, so one of the two does not count optimiser steps"
    )


def _num_missing(asked: Experiment, finished: Sequence[Observation]) -> int | None:
    try:
        return source_of(asked, asked.resolve_site(), finished).remaining
    except SpecError:
        return None

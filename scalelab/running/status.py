"""The status of a run: what has ended, what runs and what is missing."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError, StoreError
from scalelab.experiment.fingerprint import words_of_run
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import is_canary
from scalelab.inputs.numerals import DeviceWords
from scalelab.inputs.outcome import Outcome
from scalelab.plan.diverged import diverged_runs
from scalelab.plan.inquiry import Inquiry
from scalelab.plan.memory_limits import MemoryLimit, memory_limits
from scalelab.plan.source import Observation
from scalelab.plan.tracked import source_of
from scalelab.records.control.events import (
    NodeLost,
    NodeUp,
    Stopping,
    SweepEnded,
    SweepStarted,
    Waiting,
    events_of_last_sweep,
)
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobList
from scalelab.records.store import RunReader
from scalelab.records.taken_over import IMPORTED


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """The status of a run."""

    outcomes: Mapping[str, int]
    used_gpu_s: float
    words: DeviceWords
    driver: str | None  # who runs the sweep at the moment, in words
    running: tuple[tuple[str, int], ...]
    # Trials to come; None, not known: for an imported table, an auto batch that is
    # still looked for, a source that does not say, or a site that is not this machine.
    num_missing: int | None
    # Why trials ended without a measurement, or with one that is not used.
    reasons: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    num_nodes: int = 0  # that are up while a driver runs the sweep
    num_devices: int = 0
    stopping: str | None = None  # why the driver starts no more trials
    stopped: str | None = None  # why the last sweep ended early
    unreadable: str = ""  # why nothing else is known of the last sweep
    has_canaries: bool = False
    memory_limits: tuple[MemoryLimit, ...] = ()
    diverged: Mapping[str, Any] = field(default_factory=dict)  # see diverged_runs
    inquiry: Inquiry | None = None  # what a source is to find out, and how far it is


def status_of(reader: RunReader, experiment: Experiment | None) -> RunStatus:
    """Return the status of a run."""
    rows = reader.rows()
    finished = reader.finished(rows)
    here = [r for r in finished if experiment is None or r["kind"] != IMPORTED]
    ended = {(row["trial_id"], row["attempt"]) for row in rows}

    driver, num_missing, inquiry = reader.driver, None, None
    if experiment is not None:
        with suppress(SpecError):
            site = experiment.resolve_site()
            asked = experiment.as_in(reader.fingerprint)
            source = source_of(asked, site, finished)
            num_missing, inquiry = source.remaining, source.inquiry

    # at one moment, so that one does not contradict the other
    nodes, waiting, stopping, stopped, unreadable = _of_last_sweep(reader.directory)
    job_list = JobList.read(reader.directory / CLUSTER_DIRECTORY)
    return RunStatus(
        outcomes=dict(Counter(str(row["outcome"]) for row in here)),
        used_gpu_s=sum(row.get("allocated_gpu_s") or 0.0 for row in rows),
        words=words_of_run(reader.fingerprint, rows),
        driver=driver,
        running=tuple(key for key in reader.running() if key not in ended),
        num_missing=num_missing,
        reasons=tuple(
            f"{row['trial_id']}: {row['outcome']}. {why}".rstrip()
            for row in here
            if (why := _why_unused(row)) is not None
        ),
        jobs=tuple(map(str, job_list.jobs)),
        waiting=(*job_list.waiting, *(waiting if driver else ())),
        num_nodes=len(nodes) if driver else 0,
        num_devices=sum(nodes.values()) if driver else 0,
        stopping=stopping if driver else None,
        stopped=None if driver else stopped,
        unreadable=unreadable,
        has_canaries=any(is_canary(row["repeat"]) for row in finished),
        memory_limits=memory_limits(here),
        # a search counts them among its own trials
        diverged={} if experiment and experiment.tune else diverged_runs(here),
        inquiry=inquiry,
    )


def _of_last_sweep(
    run: Path,
) -> tuple[dict[str, int], list[str], str | None, str | None, str]:
    # Devices of nodes that are up, what trials wait for, why it stops, and stopped, and
    # why its events cannot be read: they tell of progress only.
    nodes: dict[str, int] = {}
    waiting: list[str] = []
    stopping, stopped, unreadable = None, None, ""

    kinds = (SweepStarted, NodeUp, NodeLost, Waiting, Stopping, SweepEnded)
    try:
        for event in events_of_last_sweep(run, kinds):
            match event:
                case SweepStarted():
                    # Unless a last word follows.
                    stopped = "its driver was killed, or its host went down"
                case NodeUp():
                    nodes[event.node] = event.num_devices
                    waiting.clear()
                case NodeLost():
                    nodes.pop(event.node, None)
                case Waiting():
                    waiting = [event.reason]
                case Stopping():
                    stopping = event.reason
                case SweepEnded():
                    stopped = event.stopped
    except StoreError as error:
        unreadable = str(error)

    return nodes, waiting, stopping, stopped, unreadable


def _why_unused(row: Observation) -> str | None:
    if not Outcome(row["outcome"]).is_measurement:
        return row["reason"] or ""
    ours, printed_s = row.get("step_time_s"), row.get("reported_step_time_s")
    if not (ours and printed_s and "rate_disagrees" in (row.get("validity") or ())):
        return None

    batch = row["global_batch_size"]
    return (
        f"Not used: the program prints {batch / printed_s:.3g} samples/s, ScaleLab "
        f"read {batch / ours:.3g}, so one of the two does not count optimiser steps"
    )

"""The execution of a sweep: nodes come up, and a driver runs and records the trials.

With ``session`` this is where both sides meet: what runs trials is handed the plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import SpecError
from scalelab.experiment.program import CommandProgram, Program, needs_torch
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.first_words import with_program_beside
from scalelab.plan.first_trials import FirstTrials
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.records.code import code_paths, snapshot_code
from scalelab.records.control.stop_request import StopRequests
from scalelab.records.store import RunStore
from scalelab.running.sweep import Sweep
from scalelab.scheduling.summary import SweepSummary, SweepTally, Unfinished

if TYPE_CHECKING:
    from scalelab.cluster.dask_nodes import DaskNodes
    from scalelab.scheduling.driver import Driver
    from scalelab.scheduling.events import Event, OnEvent
    from scalelab.site.profile import Site

MAX_JOBS_LOST = 8
"""Batch jobs that one trial may lose, to preemption or their time limit."""
FIRST_TRIAL = "the first trial failed its check"
_INPUT_ERROR = "scalelab.errors.SpecError: "


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSweep:
    """A sweep whose nodes are up: where to watch it, and how to stop it.

    Parameters
    ----------
    driver
        The driver that runs the trials; ``drain`` and ``kill`` stop it.
    dashboard_link
        The address of Dask's dashboard; None: the site wants none.
    """

    driver: Driver
    source: TrackedSource
    dashboard_link: str | None
    stop_requests: StopRequests


def run_sweep(
    sweep: Sweep,
    *,
    source: TrackedSource | None = None,
    budget_gpu_hours: float | None = None,
    on_event: OnEvent = lambda event: None,
    on_start: Callable[[RunningSweep], None] = lambda running: None,
) -> SweepSummary:
    """Run the trials that are left of a sweep."""
    store = sweep.open_store()
    with store.lease() as lease, StopRequests(sweep.directory) as stop_requests:
        store.extend(
            sweep.text,
            sweep.fingerprint,
            site=sweep.site_name,
            supersedes=bool(sweep.changes),
        )
        if earlier := _all_done(sweep, store):
            return earlier
        programs = _programs(sweep, store)
        source = source or source_of(sweep.experiment, sweep.site)
        first = FirstTrials(source, programs if sweep.checks_first else ())
        from scalelab.scheduling.events import NodesStarting

        imports_torch = any(map(needs_torch, programs.values()))
        on_event(NodesStarting(imports_torch=imports_torch))
        with _nodes(sweep, programs.values()) as cluster:
            from scalelab.scheduling.driver import Driver
            from scalelab.scheduling.events import Unreadable

            guard = _InputErrors(on_event, first)
            driver = Driver(
                first,
                cluster,
                store,
                programs,
                estimate_duration=source.estimate,
                on_event=guard,
                retry_failed=sweep.retry_failed,
                budget_gpu_s=budget_gpu_hours and budget_gpu_hours * 3600,
                **_patience(sweep.site),
            )
            guard.stop = driver.drain
            stop_requests.control(driver.drain, driver.kill)
            on_start(
                RunningSweep(
                    driver=driver,
                    source=source,
                    dashboard_link=cluster.dashboard_link,
                    stop_requests=stop_requests,
                )
            )
            lease.say_begun()
            summary = driver.run()
        try:
            problems = store.compact()
        except (ImportError, MemoryError) as error:  # the next reader tries again
            problems = [f"Steps were not compacted, which costs readers time: {error}"]
        for problem in problems:
            on_event(Unreadable(reason=problem))
    guard.raise_first()
    return _with_unsound(summary, first)


def _with_unsound(summary: SweepSummary, first: FirstTrials) -> SweepSummary:
    """Add the first trials that were unsound, and the trials held back for them."""
    if not first.failures:
        return summary
    held = [Unfinished(trial, FIRST_TRIAL) for trial in first.withheld()]
    return replace(
        summary,
        unfinished=(*summary.unfinished, *held),
        stopped=summary.stopped or (FIRST_TRIAL if first.has_stopped else None),
        unsound=tuple(first.failures.values()),
    )


def _all_done(sweep: Sweep, store: RunStore) -> SweepSummary | None:
    """Return the summary of earlier sweeps, if they left nothing to run."""
    if sweep.num_remaining and not sweep.plan.assumes_local_batch:
        return None
    source, tally = source_of(sweep.experiment, sweep.site), SweepTally()
    for row in store.recover(retry_failed=sweep.retry_failed):
        if row["outcome"] == Outcome.REFUSED:
            return None  # what did not fit the nodes of that sweep may fit these
        source.tell(row)
        tally.count_earlier(row)
    return tally.summary(None) if source.is_exhausted() else None


def _patience(site: Site) -> dict[str, Any]:
    """Return options of the driver: how long to wait for nodes, how often to retry.

    A batch system's queue takes its time, and its jobs end while trials run.
    """
    options: dict[str, Any] = {"lost_after_s": site.lost_after}
    if site.batch_system is not None:
        options |= {"node_timeout_s": math.inf, "max_retries": MAX_JOBS_LOST}
    return options


def _programs(sweep: Sweep, store: RunStore) -> dict[str | None, Program]:
    """Return what trials run; commands keep the name they have in the run's records.

    An answer is about one workload: the experiment may have got another name since,
    and commands were once called after their run.
    """
    root, copy = sweep.experiment.code_root, _snapshot(sweep, store)
    programs = {
        name: _beside(program, root)
        for name, program in sweep.experiment.programs(
            copy, sweep.experiment.inherited(os.environ)
        ).items()
    }
    is_same = not any(change.startswith("workload: ") for change in sweep.changes)
    rows = store.rows() if is_same and sweep.experiment.workload is None else []
    if not rows:
        return programs
    called = str(rows[-1]["workload"])
    return {name: replace(each, name=called) for name, each in programs.items()}


def _beside(program: Program, root: Path) -> Program:
    """Return a program whose interpreter is found where it lies, outside the copy."""
    if not isinstance(program, CommandProgram):
        return program
    directory = Path(program.code_directory)
    return replace(
        program, command=with_program_beside(program.command, root, directory)
    )


def _snapshot(sweep: Sweep, store: RunStore) -> Path | None:
    """Copy the user's code and return the copy; None: the code runs where it lies.

    Where the experiment's file is among it, that is copied as the records have it.
    """
    paths = code_paths(sweep.experiment)
    if not paths:
        return None
    directory, _ = snapshot_code(
        paths,
        sweep.experiment.code_root,
        store.directory / "code",
        instead={sweep.text.encode(): store.experiment_text.encode()},
    )
    return directory


def _nodes(
    sweep: Sweep, programs: Collection[Program]
) -> AbstractContextManager[DaskNodes]:
    from scalelab.cluster.from_site import cluster_of

    trials = sweep.plan.trials
    return cluster_of(
        sweep.site,
        run=sweep.directory,
        max_nodes=max(trial.allocation.num_nodes for trial in trials),
        programs=programs,
        parallelism=sweep.experiment.parallelism,
    )


class _InputErrors:
    """The first error that a rank finds in the user's input; it ends the sweep.

    One of several programs ends its own trials alone: the others may be right. What
    first trials show is said by their check.
    """

    def __init__(self, on_event: OnEvent, first: FirstTrials) -> None:
        self._on_event = on_event
        self._first_trials = first
        self._first: str | None = None
        self.stop: Callable[[], None] = lambda: None

    def __call__(self, event: Event) -> None:
        from scalelab.scheduling.events import TrialEnded

        if (
            isinstance(event, TrialEnded)
            and event.trial.program is None
            and not self._first_trials.includes(event.trial)
        ):
            last_line = (event.traceback or "").strip().rpartition("\n")[2]
            if last_line.startswith(_INPUT_ERROR) and self._first is None:
                self._first = last_line.removeprefix(_INPUT_ERROR)
                self.stop()
        self._on_event(event)

    def raise_first(self) -> None:
        if self._first is not None:
            raise SpecError(self._first)

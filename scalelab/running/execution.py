"""The execution of a sweep: nodes come up, and a driver runs and records the trials.

With ``session`` this is where both sides meet: what runs trials is handed the plan.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import SpecError, StoreError
from scalelab.experiment.program import (
    CommandProgram,
    Program,
    framework_of,
    saving_s,
)
from scalelab.plan.budget import ENDING_S, Account, Rate, Spent, devices_alone
from scalelab.plan.first_check import FirstTrials
from scalelab.plan.tracked import TrackedSource
from scalelab.reading.scripts.first_words import with_program_beside
from scalelab.records.code import code_paths, snapshot_code
from scalelab.records.control.events import (
    Event,
    EventLog,
    OnEvent,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    Unreadable,
    seconds_of_sweeps,
)
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobList
from scalelab.records.control.stop_request import StopRequests
from scalelab.records.open_run import OpenRun
from scalelab.records.store import RunStore
from scalelab.running.sweep import Sweep
from scalelab.running.sweep_end import SweepEnd
from scalelab.scheduling.summary import SweepSummary

if TYPE_CHECKING:
    from scalelab.cluster.dask_nodes import DaskNodes
    from scalelab.scheduling.driver import Driver

# Batch jobs that one trial may lose, to preemption or their time limit.
MAX_JOBS_LOST = 8
FIRST_TRIAL = "the first trial failed its check"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSweep:
    """A sweep whose nodes are up: where to watch it, and how to stop it."""

    driver: Driver
    source: TrackedSource
    dashboard_link: str | None  # of Dask; None: the site wants none
    stop_requests: StopRequests


def run_sweep(
    sweep: Sweep,
    *,
    rate: Rate = devices_alone,
    on_event: OnEvent = lambda event: None,
    on_start: Callable[[RunningSweep], None] = lambda running: None,
) -> SweepEnd:
    """Run the trials that are left of a sweep.

    ``rate`` says what trials cost, in the unit of the sweep's budget.
    """
    with sweep.open() as run, StopRequests(sweep.directory) as stop_requests:
        account = _account(sweep, run, rate)
        sweep.source.allow(account)
        summary = _all_done(sweep, run) or _run_trials(
            sweep,
            run,
            stop_requests,
            account=account,
            on_event=on_event,
            on_start=on_start,
        )

    return SweepEnd(
        summary=summary,
        is_interrupted=stop_requests.came,
        left_jobs=JobList.read(sweep.directory / CLUSTER_DIRECTORY).jobs,
    )


def _run_trials(
    sweep: Sweep,
    run: OpenRun,
    stop_requests: StopRequests,
    *,
    account: Account,
    on_event: OnEvent,
    on_start: Callable[[RunningSweep], None],
) -> SweepSummary:
    programs = _programs(sweep, run)
    source = sweep.source
    source.begin(sweep.directory)

    first = FirstTrials(source, programs if sweep.checks_first else ())
    with _Events(sweep.directory, on_event, first) as events:
        frameworks = {framework_of(program) for program in programs.values()} - {""}
        events(
            SweepStarted(
                host=socket.gethostname(),
                pid=os.getpid(),
                frameworks=tuple(sorted(frameworks)),
            )
        )

        from scalelab.scheduling.driver import Driver

        patience: dict[str, Any] = {}
        if sweep.site.batch_system is not None:
            # Its queue takes its time, and its jobs end while trials run.
            patience = {"node_timeout_s": math.inf, "max_retries": MAX_JOBS_LOST}

        with _nodes(sweep, programs.values()) as cluster:
            driver = Driver(
                first,
                cluster,
                run,
                programs,
                estimate_duration=source.estimate,
                on_event=events,
                account=account,
                lost_after_s=sweep.site.lost_after,
                **patience,
            )

            events.stop = driver.drain
            stop_requests.control(driver.drain, driver.kill)
            on_start(
                RunningSweep(
                    driver=driver,
                    source=source,
                    dashboard_link=cluster.dashboard_link,
                    stop_requests=stop_requests,
                )
            )

            run.lease.say_begun()
            summary = driver.run()

        for problem in _compact(run.store):
            events(Unreadable(reason=problem))

        if first.failures:
            summary.unfinished += first.withheld()
            summary.unsound = tuple(first.failures.values())
        if first.has_stopped:
            summary.stopped = summary.stopped or FIRST_TRIAL
        if events.input_error is not None:
            raise SpecError(events.input_error)

        events(SweepEnded(stopped=summary.stopped))

    return summary


def _account(sweep: Sweep, run: OpenRun, rate: Rate) -> Account:
    """Return what the sweep may spend, after what earlier ones of the run used."""
    used = 0.0
    if sweep.budget is not None and sweep.budget.spent is Spent.TIME:
        used = seconds_of_sweeps(sweep.directory)
    else:
        for row in run.rows:
            if held_gpu_s := row.get("allocated_gpu_s"):
                sizes = row["world_size"], row["num_nodes"]
                group = row.get("node_group")
                used += rate(group, *sizes) * held_gpu_s / row["world_size"]

    saving = [saving_s(program) for program in sweep.experiment.programs().values()]
    return Account(
        sweep.budget,
        rate=rate,
        used=used,
        expected_s=sweep.source.expected_s,
        ending_s=ENDING_S + max(saving),
    )


def _compact(store: RunStore) -> list[str]:
    try:
        return store.compact()
    except (ImportError, MemoryError) as error:  # the next reader tries again
        return [f"Steps were not compacted, which costs readers time: {error}"]


def _all_done(sweep: Sweep, run: OpenRun) -> SweepSummary | None:
    if sweep.num_remaining and not sweep.plan.assumes_local_batch:
        return None
    if run.refused:
        return None  # what did not fit the nodes of that sweep may fit these

    earlier = SweepSummary()
    for row in run.finished:
        sweep.source.tell(row)
        earlier.count_earlier(row)

    return earlier if sweep.source.is_exhausted() else None


def _programs(sweep: Sweep, run: OpenRun) -> dict[str | None, Program]:
    """Return what trials run; commands keep the name they have in the run's records.

    An answer is about one workload: the experiment may have got another name since,
    and commands were once called after their run.
    """
    asked, root, copy = sweep.experiment, sweep.experiment.code_root, None
    if paths := code_paths(asked):
        # The experiment's file is copied as the records have it.
        recorded = {sweep.text.encode(): run.store.experiment_text.encode()}
        home = run.store.directory / "code"
        copy, _ = snapshot_code(paths, root, home, instead=recorded)

    programs = asked.programs(copy, asked.inherited(os.environ))
    is_renamed = any(change.key == "workload" for change in sweep.changes)

    earlier = None if is_renamed or asked.workload is not None else run.workload
    for name, program in programs.items():
        if isinstance(program, CommandProgram):
            beside = Path(program.code_directory)
            command = with_program_beside(program.command, root, beside)
            programs[name] = replace(
                program, command=command, name=earlier or program.name
            )

    return programs


def _nodes(
    sweep: Sweep, programs: Collection[Program]
) -> AbstractContextManager[DaskNodes]:
    from scalelab.cluster.dask_nodes import cluster_of

    trials = sweep.plan.trials
    return cluster_of(
        sweep.site,
        run=sweep.directory,
        max_nodes=max(trial.allocation.num_nodes for trial in trials),
        programs=programs,
        parallelism=sweep.experiment.parallelism,
    )


class _Events:
    """Records each event, shows it, and stops at an error in the user's input.

    A refused trial stops the sweep only if no trial was measured: one of several
    programs ends its own trials alone, and a program that was measured is right. What
    first trials show is said by their check.
    """

    def __init__(self, run: Path, show: OnEvent, first: FirstTrials) -> None:
        self._log = EventLog(run)
        self._show = show
        self._first = first
        self.input_error: str | None = None
        self.stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with closing(self._log):
            # What cannot be written, or belongs to another driver, takes no last word.
            if error is not None and not isinstance(error, StoreError):
                self._log.append(SweepEnded(stopped=str(error) or repr(error)))

    def __call__(self, event: Event) -> None:
        self._log.append(event)
        if (
            isinstance(event, TrialEnded)
            and event.input_error is not None
            and event.program is None
            and event.progress.num_done <= event.progress.num_failed
            and not self._first.includes(event.trial_id)
            and self.input_error is None
        ):
            self.input_error = event.input_error
            self.stop()

        self._show(event)

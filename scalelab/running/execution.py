"""The execution of a sweep, and of single trials of a program, to try or debug it.

Nodes come up, and a driver runs and records the trials. With ``session`` this is where
both sides meet: what runs trials is handed the plan.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import SpecError, StoreError
from scalelab.experiment.program import (
    CommandProgram,
    Program,
    framework_of,
    saving_s,
)
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import PROGRAM, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import log_tail
from scalelab.kinds.trainers import trainer_of
from scalelab.plan.budget import ENDING_S, Account, Rate, Spent, devices_alone
from scalelab.plan.configurations import MAX_TRIALS
from scalelab.plan.expand import Plan
from scalelab.plan.first_check import Finding, FirstTrials, findings, first_trials
from scalelab.plan.source import Observation, TrialSource
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.reading.logs.match import MAX_LOG_BYTES, metrics_for
from scalelab.reading.scripts.first_words import with_program_beside
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)
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
from scalelab.records.store import RunReader, RunStore
from scalelab.records.streams import read_lines
from scalelab.running.sweep import RUNS, RunningSweep, Sweep
from scalelab.running.sweep_end import SweepEnd
from scalelab.scheduling.summary import SweepSummary
from scalelab.site.profile import Site

if TYPE_CHECKING:
    from scalelab.cluster.dask_nodes import DaskNodes

# Batch jobs that one trial may lose, to preemption or their time limit.
MAX_JOBS_LOST = 8
FIRST_TRIAL = "the first trial failed its check"


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
            raise SpecError(events.input_error, code="every_trial_refused")

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


MOST_WARMUP_STEPS = 2
MOST_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A first trial that has ended, with what it shows."""

    row: Observation
    program: str | None  # None: the experiment has only one
    losses: tuple[float, ...]  # at each report, in order
    findings: tuple[Finding, ...]
    log: Path

    @property
    def is_well(self) -> bool:
        """The program was measured, and nothing is wrong."""
        return self.row["step_time_s"] is not None and not any(
            finding.stops for finding in self.findings
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The first trials of an experiment."""

    trials: tuple[Checked, ...]
    not_tried: tuple[Trial, ...]
    directory: Path | None  # of records and logs; None: deleted, since all was well

    @property
    def is_well(self) -> bool:
        """Every trial ran, and nothing is wrong."""
        return not self.not_tried and all(checked.is_well for checked in self.trials)


def prepare(experiment: str | Path, *, site: str | None = None) -> Sweep:
    """Read and check an experiment, and return the sweep of its first trials.

    Those are the smallest trial of each program and, where the experiment asks for
    several devices, the smallest of these. Each takes a few steps.
    """
    from scalelab.running.detached import refuse_second_driver

    asked = Experiment.from_file(experiment)
    # Where runs lie, which all nodes can reach, under a name that no run has.
    home = (RUNS / f".{asked.name}.try").absolute()
    refuse_second_driver(home)
    shutil.rmtree(home, ignore_errors=True)
    sweep = Sweep.read(experiment, site=site, directory=home).prepared()
    trials = tuple(
        _shortened(asked, trial)
        for trial in first_trials(sweep.plan.trials, asked.by_program())
    )
    listed = _Listed(Plan(trials=trials))

    return replace(
        sweep,
        source=TrackedSource("try", listed, programs=[*asked.by_program()]),
        plan=listed.plan,
        num_remaining=listed.total,
        checks_first=True,
    )


def try_out(
    sweep: Sweep,
    *,
    keep: bool = False,
    on_event: OnEvent = lambda event: None,
    on_start: Any = lambda running: None,
) -> Tried:
    """Run what :func:`prepare` returned, one trial after the other, and read it."""
    run_sweep(sweep, on_event=on_event, on_start=on_start)
    tried = read_first_trials(sweep)
    if tried.is_well and not keep:
        shutil.rmtree(sweep.directory, ignore_errors=True)
        with suppress(OSError):  # other runs lie there
            sweep.directory.parent.rmdir()
        tried = replace(tried, directory=None)
    return tried


def read_first_trials(sweep: Sweep, rows: Sequence[Observation] | None = None) -> Tried:
    """Return what the first trials of a sweep show."""
    reader = RunReader.open(sweep.directory)
    rows = reader.finished(reader.rows()) if rows is None else rows
    programs = sweep.experiment.programs()

    checked = []
    for row in rows:
        files = AttemptFiles(reader.attempt_directory(row["trial_id"], row["attempt"]))
        name = row.get(f"options.{PROGRAM}")
        program, steps = programs.get(name), read_lines(files.stream, below=files.run)
        losses = _losses(steps)
        metrics = program.metrics if isinstance(program, CommandProgram) else None

        found = findings(row, losses=losses, others=rows)
        if row["outcome"] in (Outcome.FAILED, Outcome.STALLED) and not steps:
            log = log_tail(files.log(0), num_bytes=MAX_LOG_BYTES)
            advice = metrics_for(log.encode()) if metrics else {}
            if row["outcome"] == Outcome.STALLED and not advice:
                advice = {"measure": {"start_up_timeout": "30min"}}
            found = [replace(f, advice=advice or f.advice) for f in found]

        checked.append(
            Checked(
                row=row,
                program=name,
                losses=losses,
                findings=tuple(found),
                log=files.log(0),
            )
        )

    ended = {trial_checked.row["trial_id"] for trial_checked in checked}
    return Tried(
        trials=tuple(checked),
        not_tried=tuple(t for t in sweep.plan.trials if t.trial_id not in ended),
        directory=sweep.directory,
    )


def debug(
    experiment: str | Path, *, site: str | None = None
) -> tuple[Trial, AttemptResult]:
    """Run the first one-device trial in this process, without fork or supervisor.

    The code runs where it lies, so that breakpoints in it are met. Nothing is recorded.
    """
    from scalelab.cluster.devices import local_devices
    from scalelab.launch.ranks.rank_process import run_in_process

    asked = Experiment.from_file(experiment)
    where = asked.resolve_site(site)
    trial = _first_on_one_device(asked, where)
    device_type = where.in_group(trial.node_group).device_type.value

    share = NodeShare(node="here", device_ids=local_devices(device_type)[:1])
    with TemporaryDirectory(prefix="scalelab-") as directory:
        spec = AttemptSpec(
            run=asked.name,
            trial=trial,
            program=asked.programs()[trial.program],
            number=1,
            directory=directory,
            placement=Placement(shares=(share,)),
            device_type=device_type,
            known=KnownWorkload.named(trial.workload),
        )
        return trial, run_in_process(spec, trainer_of(trial.workload)[0])


def _first_on_one_device(asked: Experiment, site: Site) -> Trial:
    for alone in asked.by_program().values():
        if alone.command is not None:
            raise SpecError(
                f"command: {alone.command[:60]!r} is a program of its own; only a "
                "workload class can run in this process. Start the command under its "
                "own debugger.",
                code="command_in_process",
            )

    sizes = set()
    for trial in islice(iter(source_of(asked, site).ask, None), MAX_TRIALS):
        if trial.world_size == 1:
            return trial
        sizes.add(trial.world_size)

    raise SpecError(
        f"the trials take {', '.join(map(str, sorted(sizes)))} devices; one process "
        "can hold 1. Add 1 to gpus, or debug a copy of the experiment with gpus: 1.",
        code="several_devices",
    )


class _Listed(TrialSource):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting = list(plan.trials)
        self._num_told = 0

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def total(self) -> int:
        return len(self._plan.trials)

    @property
    def remaining(self) -> int:
        return self.total - self._num_told

    def ask(self) -> Trial | None:
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, observation: Observation) -> None:
        self._num_told += 1


def _shortened(asked: Experiment, trial: Trial) -> Trial:
    # A few steps of throughput, with a batch that is sure to fit.
    measurement = replace(
        trial.measurement,
        warmup_steps=min(trial.measurement.warmup_steps, MOST_WARMUP_STEPS),
        steps=min(trial.measurement.steps, MOST_STEPS),
        target=None,
        max_samples=None,
        evaluate_every_samples=None,
        judged_by=(),
    )

    local = trial.local_batch_size
    if isinstance(asked.local_batch_size, AutoBatch):
        local = min(local, asked.local_batch_size.multiple_of)

    return replace(
        trial,
        kind=TrialKind.THROUGHPUT,
        repeat=0,
        local_batch_size=local,
        measurement=measurement,
    )


def _losses(reports: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    steps = [row for row in reports if row.get("event") == "step"]
    names = [name for row in steps for name in row if "loss" in name.lower()]
    name = "loss" if "loss" in names else next(iter(names), "")
    return tuple(row[name] for row in steps if isinstance(row.get(name), int | float))

"""Single trials: the first ones of a program, a few steps long, or one to debug."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.program import CommandProgram
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import PROGRAM, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import log_tail
from scalelab.kinds.trainers import trainer_of
from scalelab.plan.configurations import MAX_TRIALS
from scalelab.plan.expand import Plan
from scalelab.plan.first_check import Finding, findings, first_trials
from scalelab.plan.source import Observation, TrialSource
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.reading.logs.match import MAX_LOG_BYTES, metrics_for
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)
from scalelab.records.control.events import OnEvent
from scalelab.records.store import RunReader
from scalelab.records.streams import read_lines
from scalelab.running.execution import run_sweep
from scalelab.running.sweep import RUNS, Sweep
from scalelab.site.profile import Site

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
                "own debugger."
            )

    sizes = set()
    for trial in islice(iter(source_of(asked, site).ask, None), MAX_TRIALS):
        if trial.world_size == 1:
            return trial
        sizes.add(trial.world_size)

    raise SpecError(
        f"the trials take {', '.join(map(str, sorted(sizes)))} devices; one process "
        "can hold 1. Add 1 to gpus, or debug a copy of the experiment with gpus: 1."
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

"""A sweep: the experiment, the site and the run, read and checked before it runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import MissingExtraError, SpecError
from scalelab.experiment.checks import check_trials, check_workload
from scalelab.experiment.command_values import commands_of, naming
from scalelab.experiment.fingerprint import (
    Change,
    fingerprint_changes,
    words_of_run,
)
from scalelab.experiment.hidden import is_hidden
from scalelab.experiment.program import WorkloadProgram, framework_of
from scalelab.experiment.spec import Experiment
from scalelab.inputs.document import read_document
from scalelab.inputs.numerals import DeviceWords, counted
from scalelab.inputs.problems import Option
from scalelab.kinds.sources import SOURCES
from scalelab.kinds.trainers import trainer_of
from scalelab.plan.budget import Budget
from scalelab.plan.expand import Plan, plan
from scalelab.plan.first_check import is_measurement, is_sound
from scalelab.plan.further import further_trial
from scalelab.plan.source import Observation
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.reading.scripts.first_words import check_start
from scalelab.records.attempt import is_taken
from scalelab.records.code import code_hash, code_of_programs
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.records.control.stop_request import StopRequests
from scalelab.records.open_run import OpenRun
from scalelab.records.store import RunReader, RunStore
from scalelab.records.taken_over import apart, taken_over
from scalelab.site.choice import lasting_name
from scalelab.site.job_script import refuse_log_directory
from scalelab.site.node_settings import DeviceType
from scalelab.site.profile import Site, num_cores

if TYPE_CHECKING:
    from scalelab.scheduling.driver import Driver

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A sweep that is ready to run: the experiment, the site and earlier results."""

    experiment: Experiment
    text: str
    file: Path  # absolute
    site: Site
    site_name: str | None  # name or path of its profile; None: the experiment names it
    source: TrackedSource  # it knows what earlier sweeps of the run finished
    plan: Plan  # of a source without one, all that the experiment's lists combine to
    is_planned: bool
    directory: Path  # absolute; it need not exist
    fingerprint: dict[str, Any]
    changes: tuple[Change, ...]  # of it since the run's trials; empty: comparable
    has_measurements: bool
    num_finished: int
    num_remaining: int | None  # of an unresolved auto batch about; None: not known
    gpu_hours: float | None  # that they will take, by the run's own trials
    words: DeviceWords
    retry_failed: bool
    checks_first: bool
    budget: Budget | None  # None: no limit
    taken_over: tuple[Observation, ...]  # rows of another run that it starts from

    @classmethod
    def read(
        cls,
        experiment: str | Path,
        *,
        site: str | None = None,
        directory: str | Path | None = None,
        retry_failed: bool = False,
        skip_check: bool = False,
        trial: str | None = None,
        budget: str | None = None,
        adapt: str | Path | None = None,
    ) -> Self:
        """Read and check the experiment, the site and the run; write nothing.

        A ``trial`` is one that runs besides those of the experiment, see
        :func:`scalelab.plan.further.further_trial`. ``budget`` is text, see
        :meth:`.Budget.parse`; ``adapt`` the directory of a run from whose rows an
        adaptive source starts.
        """
        limit = None if budget is None else Budget.parse(budget)
        asked = Experiment.from_file(experiment)
        where, site_name = asked.resolve_site(site), site and lasting_name(site)
        check_start(experiment, asked, where)
        home = Path(directory or RUNS / asked.name).absolute()
        asked = _as_in(home, asked)
        fingerprint = asked.fingerprint(
            code_hash=code_hash(asked),
            device_type=where.device_type.value,
            code_of_programs=code_of_programs(asked),
        )
        checks_first = not skip_check and asked.facts is None  # else it is built in
        is_number = is_sound if checks_first else is_measurement
        changes: tuple[Change, ...] = ()

        rows, finished = list[Observation](), list[Observation]()
        if is_taken(home):
            reader = RunReader.open(home)
            changes = fingerprint_changes(reader.fingerprint, fingerprint)
            rows = reader.rows()
            # Unless a trial has shown that the program works, failed ones run again.
            retry_failed |= checks_first and not any(map(is_number, rows))
            if not changes:
                finished = reader.finished(rows, retry_failed=retry_failed)

        rows, kept = apart(rows)
        finished, _ = apart(finished)
        elsewhere = kept or _taken_over(adapt, asked, where, home)
        source = source_of(asked, where, rows=rows)
        for row in (*elsewhere, *finished):
            source.resume(row)

        if trial is not None:
            source.propose(further_trial(asked, where, trial, source.known_ids))

        planned, left = source.plan or _chosen_from(asked, where), source.left
        num_finished, num_remaining = len(finished), source.remaining
        if left is not None:
            num_finished, num_remaining = len(planned.trials) - len(left), len(left)
        _check(asked, where, planned, runs_more=num_remaining != 0)
        return cls(
            experiment=asked,
            text=read_document(Path(experiment)),
            file=Path(experiment).absolute(),
            site=where,
            site_name=site_name,
            source=source,
            plan=planned,
            is_planned=left is not None,
            directory=home,
            fingerprint=fingerprint,
            changes=changes,
            has_measurements=any(map(is_number, rows)),
            num_finished=num_finished,
            num_remaining=num_remaining,
            gpu_hours=source.gpu_hours,
            words=_words(fingerprint, rows, planned, where),
            retry_failed=retry_failed,
            checks_first=checks_first,
            budget=limit,
            taken_over=tuple(elsewhere),
        )

    def prepared(self, *, accept_changes: bool = False) -> Self:
        """Return the sweep, with all that it needs to run checked; write nothing."""
        refuse_log_directory(self.site, self.directory / CLUSTER_DIRECTORY)
        for program, alone in commands_of(self.experiment):
            hidden = [name for name, value in alone.env.items() if is_hidden(value)]
            with naming(program):
                if hidden:
                    raise SpecError(
                        f"env.{hidden[0]} is a hash, as the records of a run hold it "
                        "in place of the value. Write the value, or move the name to "
                        "env_from.",
                        code="value_is_hash",
                    )

        name = self.experiment.source.name
        if SOURCES[name].is_adaptive and self.budget is None:
            raise SpecError(
                f"source={name} chooses its trials, and nothing says what they may "
                f"take in all. Say {Option('budget', '10gpu-h')}, or money, "
                "20usd, or time, 2h.",
                code="no_budget",
            )

        self.experiment.inherited(os.environ)
        if self.changes and self.has_measurements and not accept_changes:
            changes = "; ".join(map(str, self.changes))
            raise SpecError(
                "The code, the command or the measurement changed since trials in "
                f"{self.directory} were run: {changes}. Their "
                "numbers cannot be compared with new ones. Give the experiment another "
                "name for a new run, or pass --accept-changes to go on in this one: "
                "what was measured before is then marked code_changed, left out of the "
                "fits, and measured again.",
                code="code_changed",
            )

        _require_what_runs_trials(self.experiment)
        return self

    @property
    def question(self) -> str | None:
        """What to ask the user before so large a sweep; None: nothing."""
        is_open = self.site.batch_system is not None and self.budget is None
        return self.experiment.confirm_above.question(
            self.num_remaining,
            self.gpu_hours,
            self.share_of_job if is_open else None,
            self.words.hour,
        )

    @property
    def share_of_job(self) -> float | None:
        """Samples that the trials left train, as a share of the job's.

        Trials whose step times settle late, and long trials, train more. None: the
        trials, or the samples of the job, are not known.
        """
        job, left = self.experiment.job, self.source.left
        if job is None or left is None:
            return None

        shares = [
            trial.max_steps * trial.global_batch_size / num_samples
            for trial in left
            if (num_samples := job.num_samples(trial.global_batch_size))
        ]
        return sum(shares) if shares else None

    @property
    def crowding(self) -> str:
        """Say that trials have more ranks than this machine has cores; else empty."""
        site, cores = self.site, num_cores()
        if not site.is_this_machine or site.device_type is not DeviceType.CPU:
            return ""

        timed = (trial for trial in self.plan.trials if not trial.is_emulated)
        if not any(trial.world_size > cores for trial in timed):
            return ""

        nodes = site.num_nodes or 1
        fitting = f"gpus_per_node: {cores // nodes or cores}"
        return (
            f"{counted(nodes * site.devices_per_node, 'CPU slot')} are declared, this "
            f"machine has {counted(cores, 'core')}: trials of more ranks "
            "are measured, but their times are left out of the answer. Declare "
            f"{fitting if nodes <= cores else f'nodes: 1, {fitting}'}."
        )

    @property
    def origin(self) -> dict[str, str]:
        """Where the experiment was read, as a run's header has it."""
        return {"file": str(self.file)}

    def store(self) -> RunStore:
        """Return the run's records; its directory is made where there is none."""
        if (self.directory / "run.json").exists():
            return RunStore.open(self.directory)
        return RunStore.create(
            self.directory,
            experiment_text=self.text,
            fingerprint=self.fingerprint,
            site=self.site_name,
            source=self.origin,
            code_directory=self.experiment.code_root,
        )

    @contextmanager
    def open(self) -> Iterator[OpenRun]:
        """Hold the run as its one driver, and record what is asked of it now."""
        store = self.store()
        with store.lease() as lease:
            store.extend(
                self.text,
                self.fingerprint,
                site=self.site_name,
                source=self.origin,
                supersedes=bool(self.changes),
            )
            store.take_over(self.taken_over)
            yield OpenRun.recover(store, lease, retry_failed=self.retry_failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSweep:
    """A sweep whose nodes are up: where to watch it, and how to stop it."""

    driver: "Driver"
    source: TrackedSource
    dashboard_link: str | None  # of Dask; None: the site wants none
    stop_requests: StopRequests


def _as_in(home: Path, asked: Experiment) -> Experiment:
    """Return the experiment as the run asks for it, where there is one."""
    return asked.as_in(RunReader.open(home).fingerprint) if is_taken(home) else asked


def _check(
    experiment: Experiment, site: Site, planned: Plan, *, runs_more: bool
) -> None:
    if runs_more or experiment.accept:
        check_workload(experiment, site, experiment.code_root)
    if runs_more:
        check_trials(experiment, site, planned.trials)


def _chosen_from(experiment: Experiment, site: Site) -> Plan:
    """Return what a source chooses from that does not know its trials beforehand."""
    every = plan(experiment, site)
    trials = tuple(trial for trial in every.trials if not trial.is_canary)
    return replace(every, trials=trials)


def _taken_over(
    adapt: str | Path | None, experiment: Experiment, site: Site, home: Path
) -> list[Observation]:
    if adapt is None:
        return []
    if not SOURCES[experiment.source.name].is_adaptive:
        raise SpecError(
            f"{Option('adapt', str(adapt))} starts a source that chooses its trials; "
            f"source={experiment.source.name} does not. Write source: {{name: "
            "adaptive} in the experiment.",
            code="source_takes_nothing_over",
        )
    run = Path(adapt)
    if run.resolve() == home.resolve():
        return []  # it goes on with its own rows anyway

    name = experiment.workload_name if experiment.workload else experiment.name
    known = {"workload": name, "device_type": site.device_type.value}
    return taken_over(run.name, RunReader.open(run).rows(), **known)


def _words(
    fingerprint: Mapping[str, Any],
    rows: Sequence[Observation],
    planned: Plan,
    site: Site,
) -> DeviceWords:
    """Return the words for the devices that trials ran on, and will run on."""
    names, groups = {trial.node_group for trial in planned.trials}, site.groups
    devices = ({"device_type": groups[name].device_type} for name in names)
    return words_of_run(fingerprint, [*rows, *devices])


def _require_what_runs_trials(experiment: Experiment) -> None:
    if not (find_spec("distributed") and find_spec("cryptography")):
        raise MissingExtraError("A sweep", "run")
    for program in experiment.programs().values():
        framework = framework_of(program)
        if not framework or find_spec(framework):
            continue
        if not isinstance(program, WorkloadProgram):
            raise MissingExtraError(f"launcher={program.launcher}", "train")

        trainer, _ = trainer_of(program.name)
        if trainer.extra:
            raise MissingExtraError(f"workload={program.name}", trainer.extra)

        raise SpecError(
            f"workload={program.name} needs {framework}, which is not installed. "
            f"Install what trainer {trainer.name} needs.",
            code="framework_missing",
        )

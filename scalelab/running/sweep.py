"""A sweep from the experiment's file to its last recorded trial.

With ``session`` this is where both sides meet: what runs trials is handed the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import MissingExtraError, SpecError
from scalelab.experiment.fingerprint import fingerprint_changes
from scalelab.experiment.program import CommandProgram, Program
from scalelab.experiment.spec import Experiment
from scalelab.inputs.device_words import words_of_run
from scalelab.inputs.document import read_document
from scalelab.inputs.outcome import Outcome
from scalelab.plan.expand import Plan
from scalelab.plan.source import Observation
from scalelab.plan.tracked import TrackedSource, candidates, source_of
from scalelab.records.attempt_io import is_taken
from scalelab.records.code import code_hash, code_paths, snapshot_code
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.records.control.stop_request import StopRequests
from scalelab.records.store import RunStore
from scalelab.scheduling.summary import SweepSummary, SweepTally
from scalelab.site.choice import lasting_name
from scalelab.site.node_script import refuse_log_directory
from scalelab.site.profile import Site
from scalelab.training.workloads.introspection import check_workload

if TYPE_CHECKING:
    from scalelab.cluster.nodes import Cluster
    from scalelab.scheduling.driver import Driver
    from scalelab.scheduling.events import Event, OnEvent

RUNS = Path("runs")
MAX_JOBS_LOST = 8
"""Batch jobs that one trial may lose, to preemption or their time limit."""
_INPUT_ERROR = "scalelab.errors.SpecError: "


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningSweep:
    """A sweep whose nodes are up: where to watch it, and how to stop it.

    Parameters
    ----------
    driver
        Runs the trials; ``drain`` and ``kill`` stop it.
    source
        Proposes the trials, and knows how many there are if anybody does.
    dashboard_link
        Address of Dask's dashboard.
    stop_requests
        What ``scalelab stop`` asks of it.
    """

    driver: Driver
    source: TrackedSource
    dashboard_link: str
    stop_requests: StopRequests


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A sweep that is ready to run: the experiment, the site and earlier results.

    Parameters
    ----------
    experiment, text
        What is asked, and as it was written.
    site, site_name
        Where it runs; name or path of its profile, where not the experiment's own.
    plan
        The trials; of a source that does not know them beforehand, all that the
        experiment's lists combine to. See :func:`scalelab.plan.expand.plan`.
    is_planned
        The source of trials knows them beforehand.
    directory
        The run's directory, absolute; it need not exist.
    fingerprint
        What the trials' numbers depend on besides their configuration: code, command
        and measurement.
    changes
        How that differs from what the run holds; empty: comparable.
    has_measurements
        The run holds numbers that such changes would make incomparable.
    num_finished
        Trials that need not run again.
    num_remaining
        Trials still to run; of an unresolved ``auto`` batch, about; None: not known.
    gpu_hours
        Device-hours they will take, by the run's own trials; None: not known yet.
    device_hour_word
        What one device for an hour is called, e.g. ``GPU-h``.
    retry_failed
        Trials that ended without a measurement run again.
    """

    experiment: Experiment
    text: str
    site: Site
    site_name: str | None
    plan: Plan
    is_planned: bool
    directory: Path
    fingerprint: dict[str, Any]
    changes: tuple[str, ...]
    has_measurements: bool
    num_finished: int
    num_remaining: int | None
    gpu_hours: float | None
    device_hour_word: str
    retry_failed: bool

    @classmethod
    def read(
        cls,
        experiment: str | Path,
        *,
        site: str | None = None,
        directory: str | Path | None = None,
        retry_failed: bool = False,
    ) -> Sweep:
        """Read and check the experiment, the site and the run; write nothing.

        Raises
        ------
        SpecError
            If the experiment or the site is wrong.
        StoreError
            If the run cannot be read.
        """
        asked = Experiment.from_file(experiment)
        where = asked.resolve_site(site)
        home = Path(directory or RUNS / asked.name).absolute()
        fingerprint = asked.fingerprint(
            code_hash=code_hash(asked), device_type=where.device_type.value
        )
        changes: tuple[str, ...] = ()
        rows: list[Observation] = []
        finished: list[Observation] = []
        if is_taken(home):
            store = RunStore.open(home)
            changes = fingerprint_changes(store.fingerprint, fingerprint)
            rows = store.rows()
            if not changes:
                finished = store.finished(rows, retry_failed=retry_failed)
        source = source_of(asked, where, finished, rows=rows)
        planned, left = candidates(asked, where, source), source.left
        if left is None or left:
            check_workload(asked, where)
        return cls(
            experiment=asked,
            text=read_document(Path(experiment)),
            site=where,
            site_name=site and lasting_name(site),
            plan=planned,
            is_planned=left is not None,
            directory=home,
            fingerprint=fingerprint,
            changes=changes,
            has_measurements=any(Outcome(r["outcome"]).is_measurement for r in rows),
            num_finished=(
                len(finished) if left is None else len(planned.trials) - len(left)
            ),
            num_remaining=source.remaining if left is None else len(left),
            gpu_hours=source.gpu_hours,
            device_hour_word=words_of_run(fingerprint, rows).hour,
            retry_failed=retry_failed,
        )

    @classmethod
    def prepare(
        cls,
        experiment: str | Path,
        *,
        site: str | None = None,
        directory: str | Path | None = None,
        accept_changes: bool = False,
        retry_failed: bool = False,
    ) -> Sweep:
        """Read and check everything a sweep needs, and write nothing.

        Raises
        ------
        SpecError
            See :func:`scalelab.session.sweep`.
        MissingExtraError
            If what runs trials is not installed.
        """
        sweep = cls.read(
            experiment, site=site, directory=directory, retry_failed=retry_failed
        )
        refuse_log_directory(sweep.site, sweep.directory / CLUSTER_DIRECTORY)
        if sweep.changes and sweep.has_measurements and not accept_changes:
            raise SpecError(
                "The code, the command or the measurement changed since trials in "
                f"{sweep.directory} were run: {'; '.join(sweep.changes)}. Their "
                "numbers cannot be compared with new ones. Give the experiment another "
                "name for a new run, or pass --accept-changes to go on in this one: "
                "what was measured before is then marked code_changed, left out of the "
                "fits, and measured again."
            )
        _require_what_runs_trials()
        return sweep

    @property
    def question(self) -> str | None:
        """What to ask the user before so large a sweep; None: nothing."""
        return self.experiment.confirm_above.question(
            self.num_remaining, self.gpu_hours, self.device_hour_word
        )

    def run(
        self,
        *,
        budget_gpu_hours: float | None = None,
        on_event: OnEvent = lambda event: None,
        on_start: Callable[[RunningSweep], None] = lambda running: None,
    ) -> SweepSummary:
        """Run what is left of the sweep.

        Parameters
        ----------
        budget_gpu_hours
            Start no trial once the run has used this much device time.
        on_event
            Told what happens, in this thread.
        on_start
            Told once, when the nodes are up; never where nothing is left to run.

        Raises
        ------
        SpecError
            If a rank finds the workload or its parameters wrong.
        ClusterError
            If the nodes do not come up, or do not come back.
        StoreError
            If the run cannot be written, or another driver holds it.
        """
        store = self.open_store()
        with store.lease() as lease, StopRequests(self.directory) as stop_requests:
            store.extend(
                self.text,
                self.fingerprint,
                site=self.site_name,
                supersedes=bool(self.changes),
            )
            if earlier := self._all_done(store):
                return earlier
            program = self._program(store)
            source = source_of(self.experiment, self.site)
            with self._nodes(program) as cluster:
                from scalelab.scheduling.driver import Driver

                guard = _InputErrors(on_event)
                driver = Driver(
                    source,
                    cluster,
                    store,
                    program,
                    estimate_duration=source.estimate,
                    on_event=guard,
                    retry_failed=self.retry_failed,
                    budget_gpu_s=budget_gpu_hours and budget_gpu_hours * 3600,
                    **self._patience,
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
            store.compact()
        guard.raise_first()
        return summary

    def _all_done(self, store: RunStore) -> SweepSummary | None:
        """Return the summary of earlier sweeps, if they left nothing to run."""
        if self.num_remaining and not self.plan.assumes_local_batch:
            return None
        source, tally = source_of(self.experiment, self.site), SweepTally()
        for row in store.recover(retry_failed=self.retry_failed):
            if row["outcome"] == Outcome.REFUSED:
                return None  # what did not fit the nodes of that sweep may fit these
            source.tell(row)
            tally.count_earlier(row)
        return tally.summary(None) if source.is_exhausted() else None

    def open_store(self) -> RunStore:
        """Return the run's records; its directory is made where there is none.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        if (self.directory / "run.json").exists():
            return RunStore.open(self.directory)
        return RunStore.create(
            self.directory,
            experiment_text=self.text,
            fingerprint=self.fingerprint,
            site=self.site_name,
            code_directory=self.experiment.code_root,
        )

    @property
    def _patience(self) -> dict[str, Any]:
        """Options of the driver: how long to wait for nodes, how often to retry.

        A batch system's queue takes its time, and its jobs end while trials run.
        """
        if self.site.batch_system is None:
            return {}
        return {"node_timeout_s": math.inf, "max_retries": MAX_JOBS_LOST}

    def _program(self, store: RunStore) -> Program:
        """Return what trials run; a command keeps the name it has in the run's records.

        An answer is about one workload: the experiment may have got another name since,
        and commands were once called after their run.
        """
        program = self.experiment.program(self._snapshot(store))
        is_same = not any(change.startswith("workload: ") for change in self.changes)
        rows = store.rows() if is_same and isinstance(program, CommandProgram) else []
        return replace(program, name=str(rows[-1]["workload"])) if rows else program

    def _snapshot(self, store: RunStore) -> Path | None:
        """Copy the user's code; None: nothing to copy, it runs where it lies."""
        paths = code_paths(self.experiment)
        if not paths:
            return None
        directory, _ = snapshot_code(
            paths, self.experiment.code_root, store.directory / "code"
        )
        return directory

    def _nodes(self, program: Program) -> AbstractContextManager[Cluster]:
        from scalelab.cluster.from_site import cluster_of

        trials = self.plan.trials
        return cluster_of(
            self.site,
            run=self.directory,
            max_nodes=max(trial.allocation.num_nodes for trial in trials),
            program=program,
            parallelism=self.experiment.parallelism,
        )


class _InputErrors:
    """Ends the sweep at the first trial whose rank finds the user's input wrong."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._first: str | None = None
        self.stop: Callable[[], None] = lambda: None

    def __call__(self, event: Event) -> None:
        from scalelab.scheduling.events import TrialEnded

        if isinstance(event, TrialEnded):
            last_line = (event.traceback or "").strip().rpartition("\n")[2]
            if last_line.startswith(_INPUT_ERROR) and self._first is None:
                self._first = last_line.removeprefix(_INPUT_ERROR)
                self.stop()
        self._on_event(event)

    def raise_first(self) -> None:
        if self._first is not None:
            raise SpecError(self._first)


def _require_what_runs_trials() -> None:
    for package in ("torch", "distributed", "cryptography"):
        if find_spec(package) is None:
            raise MissingExtraError("A sweep", "train")

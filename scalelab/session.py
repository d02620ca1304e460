"""The one room that composes both sides: run a sweep, load a run, answer from it.

The command line and the notebooks call this and nothing below it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import FitError, SpecError, StoreError
from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import validated
from scalelab.inputs.quantities import parse_duration
from scalelab.inputs.target import Target
from scalelab.records.attempt import AttemptFiles, AttemptResult
from scalelab.records.attempt_io import read_result
from scalelab.records.store import RunStore
from scalelab.running.status import RunStatus, status_of
from scalelab.running.sweep import Sweep

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.laws.rows import FitRows
    from scalelab.laws.step_time.law import StepTimeLaw
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.answer.recommendation import Recommendation
    from scalelab.recommend.question.history import History
    from scalelab.recommend.question.run_site import RunSite
    from scalelab.report.figures import Figures


def load(directory: str | Path) -> Run:
    """Open a run that was swept or imported.

    Parameters
    ----------
    directory
        The run's directory, e.g. ``runs/digits``.

    Raises
    ------
    StoreError
        If it is no run.
    SchemaError
        If a newer ScaleLab wrote it.
    """
    return Run(RunStore.open(Path(directory)))


def sweep(
    experiment: str | Path,
    *,
    site: str | None = None,
    directory: str | Path | None = None,
    budget_gpu_hours: float | None = None,
    accept_changes: bool = False,
    retry_failed: bool = False,
) -> Run:
    """Run, continue or extend a sweep and return its run.

    Parameters
    ----------
    experiment
        Path of the experiment's YAML.
    site
        Name or path of a site profile; default: the experiment's, else this machine.
    directory
        The run's directory; default: ``runs/NAME``.
    budget_gpu_hours
        Start no trial once the run has used this much device time.
    accept_changes
        Go on although the workload, its code or the measurement changed; what was
        measured before is kept, marked ``code_changed``, left out of the fits, and
        measured again.
    retry_failed
        Run again what earlier sweeps could not measure, and once more what fails now.

    Raises
    ------
    SpecError
        If the experiment or the site is wrong, or the experiment changed its meaning.
    ClusterError
        If the nodes do not come up.
    StoreError
        If the run cannot be written, or another driver holds it.
    """
    asked = Sweep.prepare(
        experiment,
        site=site,
        directory=directory,
        accept_changes=accept_changes,
        retry_failed=retry_failed,
    )
    asked.run(budget_gpu_hours=budget_gpu_hours)
    return load(asked.directory)


def import_table(
    table: str | Path,
    directory: str | Path,
    *,
    mapping: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
) -> Run:
    """Read a table of somebody's measurements as a run.

    See :func:`scalelab.records.tables.importing.import_table`.
    """
    from scalelab.records.tables.importing import import_table as read

    return Run(read(Path(table), Path(directory), mapping, constants))


class Run:
    """The measurements of one run, and what they say."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._store.name

    @property
    def directory(self) -> Path:
        """Directory of the run, absolute."""
        return self._store.directory

    @property
    def experiment_text(self) -> str:
        """What was asked, as written; of an imported table, where it came from."""
        return self._store.experiment_text

    @cached_property
    def experiment(self) -> Experiment | None:
        """What was asked, at the site where it ran; None for an imported table."""
        if "imported" in self._store.meaning:
            return None
        asked = Experiment.from_text(
            self.experiment_text, source=f"the experiment of run {self.name}"
        )
        site = self._store.site
        return asked.model_copy(update={"site": site}) if site else asked

    @property
    def job(self) -> Job | None:
        """The job the experiment asks about."""
        return self.experiment.job if self.experiment else None

    @cached_property
    def observations(self) -> pd.DataFrame:
        """One row per attempt; see ``scalelab.records.columns``."""
        _ = self._state  # of before they were read: an answer is never kept as newer
        return self._store.observations()

    @cached_property
    def _fit_rows(self) -> FitRows:
        """The observations, prepared once for the laws and the report."""
        from scalelab.laws.rows import step_time_rows

        return step_time_rows(self.observations)

    @cached_property
    def _state(self) -> Mapping[str, Any]:
        """What the records were like when they were first looked at."""
        return self._store.state

    def fit(
        self, law: str = "scalelab", *, learn_from: Sequence[str | Path] = ()
    ) -> StepTimeLaw:
        """Return a law of step time fitted to the observations.

        Parameters
        ----------
        law
            A name of :data:`scalelab.laws.rivals.laws.LAWS`.
        learn_from
            Other runs to learn from, as in :meth:`recommend`.
        """
        from scalelab.laws.rivals.laws import law_named
        from scalelab.recommend.question.history import LawWithTransfer

        history = self._history(learn_from)
        return LawWithTransfer.fit(law_named(law), self._fit_rows, history=history).law

    def recommend(
        self,
        *,
        max_time: str | None = None,
        max_gpu_hours: float | None = None,
        max_cost_usd: float | None = None,
        price_per_gpu_hour_usd: float | None = None,
        target: str | None = None,
        confidence: float = 0.9,
        job: Mapping[str, Any] | None = None,
        gpus: Sequence[int] | None = None,
        select: Mapping[str, Scalar] | None = None,
        law: str = "scalelab",
        learn_from: Sequence[str | Path] = (),
    ) -> Recommendation:
        """Recommend an allocation, a batch size and a learning-rate rule.

        Parameters
        ----------
        max_time
            Deadline, e.g. ``"4h"``.
        max_gpu_hours, max_cost_usd, price_per_gpu_hour_usd
            Budget in device-hours or in money, and what a device-hour costs; default:
            what the profile of the run's site says now.
        target
            Metric to reach instead of the job's, e.g. ``"val_acc >= 0.75"``.
        confidence
            Probability with which all limits must hold, in (0, 1).
        job
            Keys of an experiment's ``job``; default: the experiment's own.
        gpus
            Numbers of devices to consider besides the measured ones.
        select
            Values by column that narrow the observations to one workload and device.
        law
            Name of the step-time law.
        learn_from
            Directories of other runs, of other workloads on the same devices or of the
            same workload elsewhere, whose step times teach about this run's.

        Raises
        ------
        SpecError
            If an argument is wrong, the observations mix workloads or devices, or
            nothing in the other runs is related to this one.
        StoreError
            If one of them is no run.
        FitError
            If the observations cannot answer.
        """
        from scalelab.recommend.answer.kept import Question
        from scalelab.recommend.question.objective import Constraints

        asked = None if target is None else Target.parse(target)
        question = Question(
            job=validated(Job, job, source="job") if job else self.job,
            limits=Constraints(
                max_time_s=None if max_time is None else parse_duration(max_time),
                max_gpu_hours=max_gpu_hours,
                max_cost_usd=max_cost_usd,
                target=asked,
                confidence=confidence,
            ),
            price_per_gpu_hour_usd=price_per_gpu_hour_usd,
            gpus=tuple(gpus or ()),
            select=dict(sorted((select or {}).items())),
            law=law,
            learn_from=tuple(str(Path(each).resolve()) for each in learn_from),
        )
        # a target that no trial stopped at is read off streams, which may still grow
        return self._asked(question) if asked is None else self._answered(question)

    def _asked(self, question: Question) -> Recommendation:
        """Return the answer kept from when the same was asked of the same records."""
        from scalelab.recommend.answer.kept import KeptAnswers

        kept = KeptAnswers(self.directory / "cache" / "answers.json", self._state)
        states = [load(each)._state for each in question.learn_from]
        words = repr((question, self.experiment_text, self._homes, states))
        if (found := kept.find(words)) is not None:
            return found
        answer = self._answered(question)
        if not self._store.running():
            with suppress(StoreError):  # a reader may lack the right, or the room
                kept.keep(words, answer)
        return answer

    def _answered(self, question: Question) -> Recommendation:
        from scalelab.recommend.by_group import answer

        frame = self._answering(question.limits.target)
        rows = self._fit_rows if frame is self.observations else frame
        return answer(question, rows, self._homes, self._history(question.learn_from))

    def _history(self, learn_from: Sequence[str | Path]) -> History | None:
        from scalelab.recommend.question.history import History

        others = {r.directory.resolve(): r for r in map(load, learn_from)}  # each once
        if self.directory.resolve() in others:
            raise SpecError(f"{self.name} knows its own rows. Learn from other runs.")
        return History.of([(run.name, run.observations) for run in others.values()])

    def _answering(self, target: Target | None) -> pd.DataFrame:
        """Return the observations, a target that no trial stopped at read off them."""
        from scalelab.laws.convergence.metric_curve import answering

        if target is None:
            return self.observations
        return answering(self.observations, self._store.streams, target)

    @cached_property
    def _homes(self) -> Mapping[str | None, RunSite]:
        """Where the sweep ran, by node group; empty: imported, or not known here."""
        from scalelab.recommend.question.run_site import RunSite

        return RunSite.by_group(self.experiment)

    def status(self) -> RunStatus:
        """Return what has been done and what is missing."""
        return status_of(self._store, self.experiment)

    def job_script(self, answer: Recommendation, site: str | None = None) -> str:
        """Return the batch job's script for the recommended allocation.

        Parameters
        ----------
        answer
            A recommendation of this run.
        site
            Name or path of the profile of a SLURM or PBS site; default: the
            experiment's own.

        Raises
        ------
        SpecError
            If the site has no batch system, or the run was imported.
        """
        from scalelab.recommend.answer.job_lines import job_lines
        from scalelab.site.directives import job_script

        if self.experiment is None:
            raise SpecError(
                f"{self.name} was imported and says nothing of a program. A job script "
                "needs a run that was swept."
            )
        row = answer.chosen
        where = self.experiment.resolve_site(site).in_group(answer.node_group or None)
        allocation = Allocation.packed(
            row.world_size, devices_on_node=-(-row.world_size // row.num_nodes)
        )
        return job_script(
            where,
            allocation,
            job_lines(self.experiment, where, answer),
            job_name=self.name,
            walltime_s=row.time_s.hi,
        )

    def answer(self) -> Recommendation | FitError | SpecError:
        """Return the recommendation without constraints, or why there is none."""
        try:
            return self.recommend()
        except (FitError, SpecError) as error:  # a sweep needs no job, an answer does
            return error

    @property
    def figures(self) -> Figures:
        """The report's figures, by name."""
        from scalelab.report.figures import Figures

        found = self.answer()
        answer = None if isinstance(found, Exception) else found
        return Figures(self._fit_rows, answer)

    def write_report(self, path: Path | None = None) -> Path:
        """Write the report and return its path.

        Parameters
        ----------
        path
            Default: ``report.html`` in the run's directory.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        from scalelab.report.html import write_report

        target = path or self.directory / "report.html"
        found = self.answer()
        answer = None if isinstance(found, Exception) else found
        write_report(
            target,
            answer,
            self._fit_rows,
            title=self.name,
            experiment_text=self.experiment_text,
            without_answer="" if answer else str(found),
            results=self._unhappy_results(),
            trials_directory=os.path.relpath(
                self.directory / "trials", target.absolute().parent
            ),
        )
        return target

    def _unhappy_results(self) -> dict[tuple[str, int], AttemptResult]:
        """Return how the attempts ended that did not complete, tracebacks included."""
        results = {}
        for row in self._store.rows():
            if row["outcome"] != Outcome.COMPLETED:
                key = (row["trial_id"], row["attempt"])
                files = AttemptFiles(self._store.attempt_directory(*key))
                if result := read_result(files):
                    results[key] = result
        return results

"""The records of a run, its experiment, and the site where it ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.guessed import Guided, ShownText, by_guess
from scalelab.inputs.numerals import counted, device_time
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import last_log_lines
from scalelab.kinds.sources import SOURCES
from scalelab.records.attempt import AttemptFiles, AttemptResult, read_result
from scalelab.records.observations import counting_rows, frame
from scalelab.records.store import RunReader, digest
from scalelab.site.choice import history_directory

if TYPE_CHECKING:
    import pandas as pd
    from optuna.study import Study

    from scalelab.experiment.spec import Experiment
    from scalelab.laws.rows import FitRows
    from scalelab.recommend.question.objective import RunSite
    from scalelab.running.status import RunStatus
    from scalelab.search.tuned_trials import SearchResult

_GUESSED = by_guess(
    {
        "run.observations, a frame": "df data frame dataframe to_frame to_df to_pandas "
        "rows results measurements attempts history head tail columns shape query loc "
        "iloc groupby",
        "run.figures.speedup": "plot plots show charts figure speedup",
        "run.figures.efficiency": "efficiency scaling",
        "run.figures.throughput": "throughput",
        "run.fit()": "law laws model fit_law predict step_time",
        "run.recommend()": "answer_for recommendation best best_config choose ask "
        "chosen optimal explain",
        "run.recommend().next_trial": "next_trial next next_measurement",
        "run.recommend().cost": "cost price gpu_hours",
        "run.recommend().sbatch()": "sbatch script slurm",
        "run.report()": "html to_html save_report report_html",
        "run.failures, a frame": "errors failed failures_table logs log",
        "run.experiment, or run.experiment_text": "config yaml spec configuration",
        "run.path": "dir folder location root",
        "run.summary": "info describe progress overview stats",
        "run.to_csv('rows.csv'), or .parquet or .json": "export save to_parquet "
        "to_json to_excel csv",
        "len(run), or run.trials": "num_trials n_trials count size num_attempts",
        "run.scaling_table()": "scaling_tables weak strong table",
        "scalelab.sweep(...)": "resume start continue_ run sweep extend",
        "scalelab.MemoryLaw.fit(run.observations)": "memory",
        "scalelab.ConvergenceLaw.fit(run.observations)": "convergence",
    }
)
_MAX_WORKLOADS = 3
_SHOWN_OF_FAILURES = (
    *("trial_id", "attempt", "kind", "world_size", "num_nodes", "local_batch_size"),
    *("outcome", "reason"),
)
_MAX_SHOWN = 5


def status_lines(status: RunStatus, directory: Path, also: Iterable[str]) -> list[str]:
    """Return the lines that ``scalelab status`` prints of the run in a directory.

    Parameters
    ----------
    also
        Sentences on acceptance and on the search of the run.
    """
    from scalelab.plan.diverged import diverged_in_words
    from scalelab.plan.memory_limits import limits_in_words
    from scalelab.records.control.lease import LOG
    from scalelab.running.detached import waiting_driver_text

    used = device_time(status.used_gpu_s / 3600, status.words.hour)
    driver = status.driver or waiting_driver_text(directory)
    log, more = directory / LOG, len(status.jobs[_MAX_SHOWN:])
    nodes = counted(status.num_nodes or 0, "node")
    devices = counted(status.num_devices or 0, "device")

    lines = [
        f"{directory}: {counted(sum(status.outcomes.values()), 'trial')} ended",
        *(f"  {count:>6,}  {outcome}" for outcome, count in status.outcomes.items()),
        *(f"  {text}" for text in limits_in_words(status.memory_limits)),
        f"  {diverged_in_words(**status.diverged)}" if status.diverged else "",
        f"Device time: {used}",
        f"Driver: {driver or 'none; the sweep is not running'}",
        f"  log: {log}" if status.driver and log.exists() else "",
        f"  up: {nodes} with {devices}" if status.num_nodes else "",
        f"  starts no more trials: {status.stopping}" if status.stopping else "",
        f"The last sweep ended early: {status.stopped}" if status.stopped else "",
        *(
            f"  begun, not ended: {trial_id}, attempt {number}"
            for trial_id, number in status.running[:_MAX_SHOWN]
        ),
        *(f"  {job}" for job in status.jobs[:_MAX_SHOWN]),
        f"  ... and {more} more jobs" if more else "",
        *(f"Waiting: {reason}" for reason in status.waiting[:_MAX_SHOWN]),
        f"Of the last sweep nothing is known: {status.unreadable}"
        if status.unreadable
        else "",
        *also,
    ]
    if status.num_missing:
        lines.append(f"Not run yet: {counted(status.num_missing, 'trial')}")

    lines += [f"  {reason}" for reason in status.reasons[:_MAX_SHOWN]]
    return [*filter(None, lines)]


class RunRecords(Guided):
    """The measurements of one run, and what was asked of it."""

    _instead: ClassVar[Mapping[str, str]] = _GUESSED

    def __init__(self, reader: RunReader) -> None:
        if not isinstance(reader, RunReader):
            raise SpecError(
                f"A run is opened by its directory: write scalelab.load({reader!r}).",
                code="not_a_directory",
            )
        self._reader = reader
        self.name = reader.name
        self.directory = reader.directory  # absolute

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """Open a run; see :func:`scalelab.load`."""
        return cls(RunReader.open(Path(directory)))

    @property
    def path(self) -> Path:
        """The run's directory, absolute."""
        return self.directory

    def __len__(self) -> int:
        return len(self.observations)

    def __bool__(self) -> bool:
        return True  # a run without attempts is one, too

    def __repr__(self) -> str:
        rows = self.observations
        sizes = sorted(rows["world_size"].dropna().astype(int).unique())
        names = [*map(str, rows["workload"].dropna().unique())]
        more = ["..."] if len(names) > _MAX_WORKLOADS else []
        what = ", ".join([*names[:_MAX_WORKLOADS], *more])
        on = f" on {sizes[0]:,} to {sizes[-1]:,} devices" if sizes else ""
        attempts = counted(len(rows), "attempt")
        return f"<Run {self.name!r} in {self._shown_path}: {attempts} of {what}{on}>"

    @cached_property
    def hashed_name(self) -> str:
        """The name with the hash of what was measured, e.g. ``resnet (3fa9c1b2)``."""
        return f"{self.name} ({digest(self._reader.rows())})"

    @property
    def experiment_text(self) -> str:
        """The experiment as written, without values of its variables.

        For an imported table, its origin.
        """
        return self._reader.experiment_text

    @property
    def source(self) -> Mapping[str, Any]:
        """The ``file`` that was read, and how a table was imported; may be empty."""
        return self._reader.source

    @property
    def site_name(self) -> str | None:
        """Name or path of the site's profile, where the experiment does not name it."""
        return self._reader.site

    @property
    def import_notes(self) -> tuple[str, ...]:
        """How an imported table was read: its curves, columns, and rows left out."""
        return self._of_import("told")

    @property
    def import_doubts(self) -> tuple[str, ...]:
        """What is doubtful about an imported table."""
        return self._of_import("doubts")

    @property
    def question(self) -> Mapping[str, Any]:
        """What an adaptive sweep is to answer, as arguments of ``recommend``."""
        if self.experiment is None or not self.is_adaptive:
            return {}
        return self.experiment.source.parameters.get("question") or {}

    @property
    def is_adaptive(self) -> bool:
        """Whether trials were chosen by what they are worth to an answer."""
        name = self.experiment.source.name if self.experiment else ""
        return name in SOURCES.names and SOURCES[name].is_adaptive

    @property
    def table_prices(self) -> tuple[Mapping[str, Any], ...]:
        """The prices in the columns of an imported table, as entries of a list."""
        return self._of_import("prices")

    def _of_import(self, name: str) -> tuple[Any, ...]:
        return tuple(self._reader.fingerprint.get("imported", {}).get(name, ()))

    @cached_property
    def experiment(self) -> Experiment | None:
        """The experiment, with the site where it ran; None for an imported table."""
        if "imported" in self._reader.fingerprint:
            return None
        from scalelab.experiment.spec import Experiment

        asked = Experiment.from_text(
            self.experiment_text, source=f"the experiment of run {self.name}"
        )
        known = {
            "site": self._reader.site,
            "env": self._reader.env(),
            "program": tuple(
                program.model_copy(update={"env": self._reader.env(program.name)})
                for program in asked.program or ()
            ),
        }
        return asked.model_copy(update={k: v for k, v in known.items() if v})

    @cached_property
    def job(self) -> Job | None:
        """The job the experiment asks about, or the target of an imported table."""
        if self.experiment:
            return self.with_epoch(self.experiment.job)
        target = self._reader.fingerprint["imported"].get("target")
        return Job.model_validate({"target": target}) if target else None

    def with_epoch(self, job: Job | None) -> Job | None:
        """Return a job with the samples of an epoch; see ``Job.with_epoch_of``."""
        if job is None or not job.lacks_epoch:
            return job
        return job.with_epoch_of(self._reader.rows())

    @cached_property
    def observations(self) -> pd.DataFrame:
        """One row per attempt; see ``scalelab.records.columns``."""
        _ = self.state  # taken first: an answer is never kept as newer than its rows
        return self._reader.observations()

    @property
    def trials(self) -> pd.DataFrame:
        """One row per trial, of the attempt that counts, as the report lists them."""
        from scalelab.report.tables import TRIAL_COLUMNS

        counting = frame(counting_rows(self._reader.rows()))
        return counting[TRIAL_COLUMNS].dropna(axis=1, how="all")

    def attempt_files(self, trial_id: str, attempt: int) -> AttemptFiles:
        """Return the files of an attempt; those of an imported row are not there."""
        return AttemptFiles(self._reader.attempt_directory(trial_id, attempt))

    @property
    def failures(self) -> pd.DataFrame:
        """The attempts that did not complete: how each ended, why, and its ``log``."""
        rows = self.observations
        bad = rows.loc[rows["outcome"].ne(Outcome.COMPLETED), [*_SHOWN_OF_FAILURES]]
        logs = {
            key: str(self._reader.attempt_directory(*key) / result.log)
            for key, result in self.unhappy_results().items()
            if result.log
        }
        keys = zip(bad["trial_id"], bad["attempt"], strict=True)
        return bad.assign(log=[logs.get(key, "") for key in keys])

    def streams(self) -> pd.DataFrame:
        """Return what attempts reported while they ran, as far as it can be read."""
        return self._reader.streams(skips_unreadable=True)

    @cached_property
    def fit_rows(self) -> FitRows:
        """The observations, prepared once for the laws and the report."""
        from scalelab.laws.rows import step_time_rows

        return step_time_rows(self.observations)

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """Signature of the records when they were first read."""
        return self._reader.state

    @cached_property
    def sites(self) -> Mapping[str | None, RunSite]:
        """The site of the sweep by node group; empty if imported, or not known here."""
        from scalelab.recommend.question.objective import RunSite

        sites = RunSite.by_group(self.experiment)
        if len(sites) != 1:
            return sites  # a log does not say of which of several groups it is
        ((name, known),) = sites.items()
        if known.is_emulated or known.site.links:
            return sites
        return {name: replace(known, logged_link=self._reader.logged_link)}

    @property
    def history_directory(self) -> Path:
        """The folder of finished runs that answers learn from."""
        named = [site.site.history for site in self.sites.values() if site.site.history]
        return Path(named[0]).expanduser() if named else history_directory()

    def status(self) -> RunStatus:
        """Return what has been done and what is missing."""
        from scalelab.running.status import status_of

        return status_of(self._reader, self.experiment)

    def status_lines(self, status: RunStatus, directory: Path) -> list[str]:
        """Return a status in lines, as ``scalelab status`` prints it."""
        also = [self.accepted, *self._inquiry_lines(status)]
        if (result := self.search_result) is not None:
            also += result.sentences
        return status_lines(status, directory, also)

    def inquiry_lines(self) -> list[str]:
        """Say what an adaptive sweep is to find out, and how far that is."""
        return self._inquiry_lines(self.status()) if self.is_adaptive else []

    def _inquiry_lines(self, status: RunStatus) -> list[str]:
        from scalelab.plan.inquiry import in_lines

        if status.inquiry is None:
            return []
        return [*in_lines(status.inquiry, status.words)]

    @property
    def summary(self) -> str:
        """What has been done and what is missing, as ``scalelab status`` prints it."""
        lines = self.status_lines(self.status(), self._shown_path)
        return ShownText("\n".join(lines))

    def _repr_html_(self) -> str:
        return ShownText(f"{self!r}\n\n{self.summary}")._repr_html_()

    @property
    def _shown_path(self) -> Path:
        here = Path.cwd()
        is_below = self.directory.is_relative_to(here)
        return self.directory.relative_to(here) if is_below else self.directory

    @property
    def search_result(self) -> SearchResult | None:
        """What was best of a search, and how its trials ended; None: none was run."""
        if self.experiment is None or not self.experiment.tune:
            return None
        from scalelab.search.tuned_trials import SearchResult

        return SearchResult.read(self.experiment, counting_rows(self._reader.rows()))

    @property
    def study(self) -> Study:
        """The study of a search, for Optuna's own plots: a copy, in memory.

        Raises
        ------
        SpecError
            If the run has searched nothing.
        """
        if self.experiment is None or not self.experiment.tune:
            raise SpecError(
                f"{self.name} has no study: nothing was searched. Sweep an experiment "
                "with tune.",
                code="no_study",
            )

        from scalelab.search.journal import JOURNAL, copied
        from scalelab.search.tuned_trials import TunedTrials

        if (study := copied(self.directory / JOURNAL)) is not None:
            return study

        search = TunedTrials(self.experiment, self.experiment.resolve_site())
        for row in self._reader.finished(self._reader.rows()):
            search.tell(row)

        return search.study(self.directory)

    @property
    def acceptance(self) -> dict[str, Any] | None:
        """How many trials hold what ``accept`` asks; None: no such key.

        A trial counts once it has been evaluated.
        """
        if not (asked := self._reader.conditions):
            return None
        verdicts = [r.get("accepted") for r in counting_rows(self._reader.rows())]
        judged = [verdict for verdict in verdicts if verdict is not None]
        return {
            "num_judged": len(judged),
            "num_accepted": sum(judged),
            "conditions": " and ".join(map(str, asked)),
        }

    @property
    def accepted(self) -> str:
        """How many trials were accepted, in a sentence; empty: nothing is asked."""
        from scalelab.recommend.answer.note_words import accepted_in_words

        return accepted_in_words(self.acceptance) if self.acceptance else ""

    def unhappy_results(self) -> dict[tuple[str, int], AttemptResult]:
        """Return the results of attempts that did not complete.

        The last lines of the log stand for a traceback where there is none.
        """
        results = {}
        for row in self._reader.rows():
            key = (row["trial_id"], row["attempt"])
            files = AttemptFiles(self._reader.attempt_directory(*key))
            result = None if row["outcome"] == Outcome.COMPLETED else read_result(files)
            if result and result.log and not result.traceback:
                log = files.directory / Path(result.log).name
                left = last_log_lines(log, 20, below=files.run)
                result = replace(result, traceback=left)
            if result:
                results[key] = result
        return results

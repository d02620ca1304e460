"""The one room that composes both sides: run a sweep, load a run, answer from it.

The command line and the notebooks call this and nothing below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from scalelab.errors import SpecError, StoreError
from scalelab.inputs.guessed import ShownText
from scalelab.inputs.lines import ended
from scalelab.inputs.numerals import counted
from scalelab.inputs.problems import Call, validated
from scalelab.reading.tables.file import ImportArguments
from scalelab.session.arguments import (
    DryRunArguments,
    RunArguments,
    RunsArguments,
    SweepArguments,
)
from scalelab.session.dry_run import DryRun
from scalelab.session.export import rows_of, write_rows
from scalelab.session.run import Run as Run

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.inputs.document import Scalar
    from scalelab.recommend.answer.recommendation import (
        Recommendation as Recommendation,
    )
    from scalelab.session.comparison import Comparison
    from scalelab.session.following import JobReport


class Runs(tuple[Run, ...]):
    """The runs in a folder, the one that was swept last first."""

    folder: str

    def __new__(cls, folder: str) -> Self:
        """Open the runs in a folder."""
        headers = Path(folder).glob("*/run.json")
        runs: list[Run] = []
        for header in sorted(headers, key=lambda path: -path.stat().st_mtime):
            with suppress(StoreError):  # it is no run, or one of a newer version
                runs.append(Run.open(header.parent))

        found = super().__new__(cls, runs)
        found.folder = folder
        return found

    @property
    def newest(self) -> Run:
        """The run that was swept last.

        Raises
        ------
        StoreError
            If there is none.
        """
        if not self:
            raise StoreError(repr(self), code="no_run")
        return self[0]

    def __repr__(self) -> str:
        if not self:
            return (
                f"No run lies in {self.folder}. Make one with scalelab.sweep(...) or "
                "scalelab.import_table(...)."
            )
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return ShownText(repr(self))._repr_html_()


def load(directory: str | Path) -> Run:
    """Open a run that was swept or imported.

    Parameters
    ----------
    directory
        The run's directory, e.g. ``runs/digits``.

    Raises
    ------
    SpecError
        If ``directory`` is no path.
    StoreError
        If it is no run.
    SchemaError
        If a newer ScaleLab wrote it.
    """
    asked = validated(RunArguments, {"directory": directory}, source=Call("load"))
    return Run.open(asked.directory)


def runs(folder: str | Path = "runs") -> Runs:
    """Return the runs in a folder, the one that was swept last first.

    Parameters
    ----------
    folder
        Where runs lie side by side.

    Raises
    ------
    SpecError
        If ``folder`` is no path.
    """
    asked = validated(RunsArguments, {"folder": folder}, source=Call("runs"))
    return Runs(asked.folder)


def dry_run(
    experiment: str | Path,
    *,
    site: str | None = None,
    directory: str | Path | None = None,
) -> DryRun:
    """Read and check a sweep without running it, as ``scalelab plan`` does.

    Parameters
    ----------
    experiment
        Path of the experiment's YAML.
    site
        Name or path of a site profile; default: the experiment's, else this machine.
    directory
        The run's directory; default: ``runs/NAME``.

    Raises
    ------
    SpecError
        If an argument, the experiment or the site is wrong.
    """
    arguments = validated(DryRunArguments, locals(), source=Call("dry_run"))
    from scalelab.running.sweep import Sweep

    return DryRun(Sweep.read(**arguments.model_dump()))


def sweep(
    experiment: str | Path,
    *,
    site: str | None = None,
    directory: str | Path | None = None,
    budget: float | str | None = None,
    accept_changes: bool = False,
    retry_failed: bool = False,
    skip_check: bool = False,
    trial: str | None = None,
    adapt: str | Path | None = None,
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
    budget
        The most that the run may take, earlier sweeps of it included: device time
        (``"10gpu-h"``, or a number of device-hours), money (``"20usd"``) or the time
        that it goes on (``"2h"``). A trial starts only if it fits into what is left.
    accept_changes
        Go on although the workload, its code or the measurement changed; what was
        measured before is kept, marked ``code_changed``, left out of the fits, and
        measured again.
    retry_failed
        Run again what earlier sweeps could not measure, and once more what fails now.
    skip_check
        Run every trial, whatever the first one of a program shows.
    trial
        One trial more than the experiment asks for, such as the one that an answer
        names next, e.g. ``"gpus=16,nodes=2,local_batch_size=64"``.
    adapt
        The directory of a run, which may be imported, from whose rows a sweep with
        ``source: adaptive`` starts.

    Raises
    ------
    SpecError
        If an argument, the experiment or the site is wrong, code, command or
        measurement changed, or the first trial failed its check.
    ClusterError
        If the nodes do not come up.
    StoreError
        If the run cannot be written, or another driver holds it.
    """
    arguments = validated(SweepArguments, locals(), source=Call("sweep"))
    from scalelab.running.execution import run_sweep
    from scalelab.running.sweep import Sweep
    from scalelab.session.sweep_cost import rate_of

    to_read = arguments.model_dump(exclude={"accept_changes"})
    asked = Sweep.read(**to_read).prepared(accept_changes=arguments.accept_changes)

    summary = run_sweep(asked, rate=rate_of(asked)).summary
    if summary.unsound and summary.stopped:
        reasons = [ended(row["reason"]) for row in summary.unsound if row.get("reason")]
        left = counted(len(summary.unfinished), "trial")
        raise SpecError(
            f"{' '.join([*reasons, 'The first trial failed its check;'])} not run: "
            f"{left}. `scalelab try {arguments.experiment}` shows what was read "
            "and what to change; skip_check=True runs every trial.",
            code="first_trial_failed",
        )

    return load(asked.directory)


def import_table(
    table: str | Path,
    directory: str | Path,
    *,
    column: Mapping[str, str] | None = None,
    constant: Mapping[str, Scalar] | None = None,
    axis: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    melt: Mapping[str, str] | None = None,
    per_device: bool = False,
    tokens_per_sample: int | None = None,
    samples_per_epoch: int | None = None,
    decimal: Literal[".", ","] | None = None,
    header_row: int | None = None,
    accept_doubts: bool = False,
) -> Run:
    """Read a table of somebody's measurements as a run.

    What was read how, and what is doubtful, stands in ``Run.import_notes`` and
    ``Run.import_doubts``.

    Parameters
    ----------
    table
        A CSV or Parquet file, one row per measured configuration or repeat.
    directory
        Where the run is made; must not exist.
    column
        The table's column for one of ours, e.g. ``{"step_time_s": "t_iter"}``.
    constant
        What a column of ours holds in every row, e.g. ``{"num_nodes": "1"}``.
    axis
        Columns of the table that are settings: each value is a curve of its own.
    ignore
        Columns of the table that are not read.
    melt
        For a table with a column per value: our column that their names hold, and the
        one that their cells hold, ``{"world_size": "throughput_samples_per_s"}``.
    per_device
        The throughput is that of one device.
    tokens_per_sample
        The throughput counts tokens; a sample has this many.
    samples_per_epoch
        The samples of one epoch, where the table counts epochs to a target.
    decimal
        The decimal sign of the numbers; needed where they do not tell, as in ``1,024``.
    header_row
        The line with the names of the columns, from 1, where others stand above it.
    accept_doubts
        Import what is doubted nevertheless.

    Raises
    ------
    SpecError
        If the table or an argument is wrong, or the table says what cannot be meant.
    StoreError
        If the directory exists or cannot be written.
    """
    arguments = validated(ImportArguments, locals(), source=Call("import_table"))
    from scalelab.reading.tables.importing import import_table as read

    return Run(read(arguments))


def jobs_table(
    jobs: Sequence[str | int],
    path: str | Path,
    *,
    constant: Mapping[str, Scalar] | None = None,
) -> Path:
    """Write jobs that ran as a table for :func:`import_table`; return its path.

    Parameters
    ----------
    jobs
        Their ids in the batch system.
    path
        The CSV file to write.
    constant
        Their ``local_batch_size`` or ``global_batch_size``; needed where the logs count
        no samples.

    Raises
    ------
    SpecError
        If no log tells a step time and a batch.
    ClusterError
        If the batch system does not know one of the jobs.
    StoreError
        If the table cannot be written.
    """
    from scalelab.session.following import write_jobs_table

    return write_jobs_table([*map(str, jobs)], Path(path), constant or {})


def compare(
    before: str | Path | Run, after: str | Path | Run, **question: Any
) -> Comparison:
    """Compare the step times of two runs, and their answers.

    Parameters
    ----------
    before, after
        Runs or their directories.
    **question
        What both are asked, as for :meth:`Run.recommend`.

    Raises
    ------
    SpecError
        If they have no configuration in common, or an argument is wrong.
    StoreError
        If a directory is no run.
    """
    first, second = (
        run if isinstance(run, Run) else load(run) for run in (before, after)
    )
    from scalelab.session.comparison import compare_runs

    return compare_runs(first, second, question)


def follow(
    job: str | int,
    run: str | Path | Run | None = None,
    /,
    *,
    log: str | Path | None = None,
    **question: Any,
) -> JobReport:
    """Hold a job that ran against the answer of a run, and say what it used.

    A job with known steps is kept in the history, from which later answers learn how
    well their intervals hold.

    Parameters
    ----------
    job
        Its id in the batch system, or the path of what it has printed.
    run
        The run whose answer it was, or its directory; None: what the job used of what
        it asked for is all that is said.
    log
        The path of what the job has printed; default: where its log lies.
    **question
        As for :meth:`Run.recommend`; default: the question whose job script was
        printed, else the run's own.

    Raises
    ------
    SpecError
        If an argument is wrong, or no steps are found in a log that was named.
    ClusterError
        If the batch system does not know the job, and nothing else tells of it.
    StoreError
        If ``run`` is no run.
    """
    from scalelab.session.following import follow_job, used_by

    if run is None:
        return used_by(str(job))
    opened = run if isinstance(run, Run) else load(run)
    printed = None if log is None else Path(log)
    return follow_job(opened, str(job), printed, question)


def export(
    runs: Sequence[str | Path | Run] | str | Path | Run,
    path: str | Path,
    *,
    per: str = "attempt",
    keep_formulas: bool = False,
) -> Path:
    """Write what runs measured as one file for other tools; return its path.

    Parameters
    ----------
    runs
        Runs or their directories, one or several.
    path
        Its ending says the format: ``.csv``, ``.parquet`` or ``.json``. What a row per
        attempt says is read back by :func:`import_table` as it is.
    per
        What a row is: ``attempt``, or ``configuration`` with medians over its attempts.
    keep_formulas
        Write texts in CSV as they are, also those that a spreadsheet would run as a
        formula. Otherwise such a text gets an apostrophe in front.

    Raises
    ------
    SpecError
        If an argument is wrong.
    StoreError
        If a directory is no run, or the file cannot be written.
    """
    several = [runs] if isinstance(runs, str | Path | Run) else [*runs]
    opened = [run if isinstance(run, Run) else load(run) for run in several]
    if not opened:
        raise SpecError(
            "export: no run is given. Name at least one.", code="no_run_to_export"
        )
    return write_rows(rows_of(opened, per), path, keep_formulas=keep_formulas)


def obtain_data(name: str, directory: str | Path | None = None) -> Path:
    """Download a data set of a built-in workload and return its directory.

    Parameters
    ----------
    name
        E.g. ``cifar10``.
    directory
        Where to put it; default: ``data/NAME``.

    Raises
    ------
    SpecError
        If no data set has this name.
    """
    from scalelab.kinds.trainers import TRAINERS

    trainers = {data_set: owner for owner in TRAINERS for data_set in owner.data_sets}
    if name not in trainers:
        raise SpecError(
            f"{name!r} is no data set that can be obtained. Choose from: "
            f"{', '.join(trainers)}.",
            code="unknown_data_set",
        )

    where = Path(directory) if directory else Path("data") / name
    return trainers[name].obtain(name, where)


def answer_text(
    answer: Recommendation, width: int | None, *, explain: bool = False
) -> str:
    """Return an answer as plain text for a terminal.

    Parameters
    ----------
    answer
        A recommendation.
    width
        Columns of the terminal, of which sentences fill 100 at most; None, as in a
        pipe: the table has all its columns.
    explain
        Add all that stands behind it, the formulas and the fitted parameters too; the
        table has all its columns.
    """
    from scalelab.recommend.answer import text

    return text.answer_text(answer, width, explain=explain)


def steadiness_sentences(observations: pd.DataFrame) -> tuple[str, ...]:
    """Say whether the machine slowed down during the sweep; empty if it was steady."""
    from scalelab.recommend.prediction.consistency import steadiness

    found = steadiness(observations)
    return found.sentences if found else ()


def marks_in_words(marks: Sequence[str], *, is_emulated: bool = False) -> str:
    """Say why an observation is left out of fits, by its marks of validity."""
    from scalelab.recommend.answer import reasons

    return reasons.in_words(marks, is_emulated=is_emulated)

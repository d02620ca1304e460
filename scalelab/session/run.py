"""A run, and what it gives out: tables, a card, figures, files, a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import FitError, SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.guessed import ShownText
from scalelab.inputs.problems import Call, validated
from scalelab.session.arguments import TableArguments
from scalelab.session.export import write_rows
from scalelab.session.recommending import RecommendingRun

if TYPE_CHECKING:
    from scalelab.report.html import Figures
    from scalelab.report.scaling_table import ScalingTable
    from scalelab.session.answer import Answer
    from scalelab.session.comparison import Comparison

_OF_A_JOB = {"job", *Job.model_fields}
_USUAL_SAMPLES = 1_000_000
_PLACE = ("world_size", "num_nodes", "local_batch_size")
_ABOUT = ("from", "to", "versions", "code", "data")  # of the provenance, on a card


class Run(RecommendingRun):
    """A run: fits laws to its measurements, answers, reports, and hands out."""

    def scaling_table(self, runs: int = 1, **question: Any) -> ScalingTable:
        """Return strong and weak scaling as forms and papers print them.

        Where nothing says how long the job is, times are of a million samples.

        Parameters
        ----------
        runs
            How often the job is to run, for the device-hours to ask for.
        **question
            As for :meth:`recommend`.

        Raises
        ------
        SpecError
            If the question is wrong.
        FitError
            If the observations cannot answer.
        """
        from scalelab.report.scaling_table import ScalingTable

        arguments = validated(
            TableArguments, {"runs": runs}, source=Call("scaling_table")
        )
        answer, job = self._scaled(question)
        return ScalingTable(answer=answer, num_runs=arguments.runs, job=job)

    def card(self, **question: Any) -> str:
        """Return the answer as Markdown with front matter, for the README of a model.

        Parameters
        ----------
        **question
            As for :meth:`recommend`.

        Raises
        ------
        SpecError
            If the question is wrong.
        FitError
            If the observations cannot answer.
        """
        from scalelab.report.card import Card
        from scalelab.report.tables import provenance_table

        answer, job = self._scaled(question)
        known = provenance_table(self.observations).rows
        about = {name: value for name, value in known if name in _ABOUT}

        return ShownText(
            Card(
                answer=answer,
                job=job,
                about={"run": self.hashed_name, **about},
                peak_bytes=self._peak_bytes(answer),
            ).text
        )

    def _peak_bytes(self, answer: Answer) -> int | None:
        """Return the largest peak memory at the recommended configuration."""
        from scalelab.report.subject import ReportSubject

        chosen = answer.chosen
        place = [chosen.world_size, chosen.num_nodes, chosen.batch.local_batch_size]
        planned = ReportSubject.of(self.fit_rows, answer).planned
        is_it = (planned[[*_PLACE]] == place).all(axis=1)
        measured = self.observations.loc[planned.index[is_it]]
        peaks = measured["gpu_memory_peak_bytes"].dropna()
        return int(peaks.max()) if len(peaks) else None

    def _scaled(self, question: dict[str, Any]) -> tuple[Answer, str]:
        """Return an answer with strong and weak scaling, and its job in words."""
        says_job = {name for name, value in question.items() if value} & _OF_A_JOB
        if self.job is None and not says_job:
            question = {**question, "job": {"samples": _USUAL_SAMPLES}}
        answer = self.recommend(**question, scaling=True)
        asked = [f.values["job"] for f in answer.facts if f.kind == "asked_job"]
        return answer, ", ".join(asked[0]) if asked else str(self.job)

    def answer(self) -> Answer | FitError | SpecError:
        """Return the answer to the run's own question, or why there is none.

        An adaptive sweep has one; without, it is asked without limits.
        """
        try:
            return self.recommend(**self.question)
        except (FitError, SpecError) as error:  # a sweep needs no job, an answer does
            return error

    @property
    def figures(self) -> Figures:
        """The report's figures, by name."""
        found = self.answer()
        return self.figures_of(None if isinstance(found, Exception) else found)

    def to_csv(
        self, path: str | Path | None = None, *, keep_formulas: bool = False
    ) -> Path:
        """Write :attr:`observations` as CSV; return its path.

        Parameters
        ----------
        path
            Default: ``NAME.csv`` in the working directory; one that ends with
            ``.parquet`` or ``.json`` is written so.
        keep_formulas
            Write texts in CSV as they are, as in :func:`scalelab.export`.

        Raises
        ------
        SpecError
            If the path ends otherwise.
        StoreError
            If it cannot be written.
        """
        target = path or f"{self.name}.csv"
        return write_rows(self.observations, target, keep_formulas=keep_formulas)

    def report(self, path: str | Path | None = None, **question: Any) -> Path:
        """Write the report and return its path.

        Parameters
        ----------
        path
            Default: ``report.html`` in the run's directory.
        **question
            As for :meth:`recommend`; ``select`` narrows all that is shown. Default:
            the run's own, see :attr:`question`.

        Raises
        ------
        SpecError
            If the question is wrong.
        StoreError
            If it cannot be written.
        """
        from scalelab.records.attempt import write_atomically
        from scalelab.report.html import render
        from scalelab.session.next_step import is_said
        from scalelab.session.parts import parts_of, selected_rows

        target = Path(path or self.directory / "report.html")
        if target.suffix.lower() not in (".html", ".htm"):
            raise SpecError(
                f"{target}: a report is one HTML file. Give a name that ends in .html; "
                "a browser prints it as PDF.",
                code="not_html",
            )

        if not any(is_said(name, value) for name, value in question.items()):
            question = {**question, **self.question}

        html = render(
            parts_of(self, self.recommend, question),
            selected_rows(self.fit_rows, question),
            title=self.name,
            experiment_text=self.experiment_text,
            results=self.unhappy_results(),
            also=" ".join(filter(None, [self.accepted, *self.inquiry_lines()])),
            imported=self._reader.fingerprint.get("imported", {}),
            streams=self.streams,
        )

        write_atomically(target, html.encode())
        return target

    write_report = report

    def compare(self, axis: str, **question: Any) -> tuple[Comparison, ...]:
        """Compare the values of a setting with the one whose answer is fastest.

        Parameters
        ----------
        axis
            A setting that varies in this run, such as ``"parallelism"``.
        **question
            As for :meth:`recommend`.

        Raises
        ------
        SpecError
            If nothing varies in the setting, or the question is wrong.
        """
        from scalelab.session.comparison import compare_values

        return compare_values(self, axis, question)

"""The parts of a report: one for each workload, with its answer or why it has none."""

from collections.abc import Callable, Mapping
from typing import Any

from scalelab.errors import FitError, SpecError
from scalelab.laws.rows import FitRows
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.evidence import evidence_without_answer
from scalelab.recommend.knowledge import apart, selected
from scalelab.report.html import Part
from scalelab.session.records import RunRecords


def selected_rows(rows: FitRows, question: Mapping[str, Any]) -> FitRows:
    """Return the rows that a question selects."""
    select = question.get("select") or {}
    return rows.take(selected(rows.observations, select).index) if select else rows


def parts_of(
    run: RunRecords,
    ask: Callable[..., Recommendation],
    question: Mapping[str, Any],
) -> dict[str, Part]:
    """Return an answer for each workload of the rows, or of what else it is about one.

    Raises
    ------
    SpecError
        If the question is wrong.
    """
    asked: dict[str, Mapping[str, Any]] = {
        f"{name} {value}": {
            **question,
            "select": {**(question.get("select") or {}), name: value},
        }
        for name, value in apart(selected_rows(run.fit_rows, question).observations)
    }

    asked = asked or {"": question}
    return {
        name: _part(run, ask, question_of_part)
        for name, question_of_part in asked.items()
    }


def _part(
    run: RunRecords, ask: Callable[..., Recommendation], question: Mapping[str, Any]
) -> Part:
    rows = selected_rows(run.fit_rows, question)
    try:
        answer = ask(**question, what_if=True)
    except (FitError, SpecError) as error:
        asked = {name for name, value in question.items() if value}
        # these leave it to the run whether there is an answer
        if isinstance(error, SpecError) and asked - {"confidence", "law", "select"}:
            raise
        evidence = evidence_without_answer(rows)
        return Part(measured=rows, without_answer=str(error), evidence=evidence)
    return Part(measured=rows, recommendation=answer)

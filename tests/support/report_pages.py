"""The page of one answer, about all rows."""

from typing import Any

from scalelab.laws.rows import Observed
from scalelab.recommend.answer.evidence import Evidence
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.report.html import Part, render

NOTHING_SEEN = Evidence()


def page_of(
    answer: Recommendation | None,
    rows: Observed,
    *,
    without_answer: str = "",
    evidence: Evidence = NOTHING_SEEN,
    **options: Any,
) -> str:
    """Return a report of one answer as HTML."""
    part = Part(
        measured=rows,
        recommendation=answer,
        without_answer=without_answer,
        evidence=evidence,
    )
    return render({"": part}, rows, **options)

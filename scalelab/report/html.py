"""The report: one self-contained HTML file that needs no network."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from scalelab.inputs.numerals import (
    counted,
    duration,
    duration_range,
    number,
    percent,
    probability,
)
from scalelab.inputs.outcome import Outcome
from scalelab.laws.rows import Observed
from scalelab.recommend.answer.evidence import Evidence
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import (
    sentences,
    texts,
    what_diminishing_means,
    what_gaps_mean,
    what_rates_say,
)
from scalelab.recommend.answer.text import (
    allocations,
    parameters,
    rates_table,
    ways_table,
)
from scalelab.records.attempt_io import write_atomically
from scalelab.report import tables
from scalelab.report.figures import PLOTS
from scalelab.report.subject import ReportSubject

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "What it takes": ("time_and_gpu_hours", "trade_off"),
    "How it scales": ("speedup", "efficiency", "throughput", "step_phases"),
    "How many samples training needs": ("samples_to_target", "metric_over_time"),
}
_DETAILS = (
    *("settings", "chance", "why_not", "accuracy", "choice", "failed"),
    *("knee", "granting", "elsewhere", "price", "spot", "electricity", "rule"),
    *("sweep_cost", "next_step"),
)


_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def render(
    recommendation: Recommendation | None,
    measured: Observed,
    *,
    title: str,
    experiment_text: str | None = None,
    without_answer: str = "",
    evidence: Evidence | None = None,
    results: tables.Results | None = None,
    accepted: str = "",
    streams: Callable[[], pd.DataFrame] = pd.DataFrame,
) -> str:
    """Return the report as HTML; ``evidence`` is given where no answer holds it."""
    if recommendation is not None:
        evidence = recommendation.evidence
    seen = evidence or Evidence()
    subject = ReportSubject.of(measured, recommendation, streams)
    observations = subject.observations
    plots, missing = _plots(subject)
    happened = _what_happened(observations)
    failed = tables.failures(observations, results or {})
    environment = Environment(
        loader=PackageLoader("scalelab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole_options"] = whole_options
    return environment.get_template("report.html.j2").render(
        title=title,
        subject=subject,
        is_emulated=bool(observations["emulated"].fillna(False).any()),
        recommendation=recommendation,
        answer=None if recommendation is None else _answer(recommendation),
        without_answer=without_answer
        or (
            "The figures show what was measured."
            if len(subject.rows)
            else f"Nothing to recommend from. {happened}"
        ),
        happened=" ".join(filter(None, [happened, accepted])),
        sections=[
            (heading, [plots[name] for name in names if name in plots])
            for heading, names in SECTIONS.items()
            if plots.keys() & set(names)
        ],
        missing=missing.items(),
        ways=seen.ways
        and {
            "table": tables.TextTable.of_columns(ways_table(seen.ways)),
            "remarks": what_gaps_mean(seen.ways),
        },
        rates=_rates(recommendation),
        evidence={
            "memory": tables.memory_table(observations),
            "steadiness": seen.steadiness.sentences if seen.steadiness else (),
            "product_check": tables.product_check_table(seen.whole_runs),
            "curves": tables.curve_table(subject) if len(subject.curves) > 1 else None,
        },
        outcomes=tables.outcome_table(observations),
        failures=failed,
        num_not_shown=int(
            observations["outcome"].ne(Outcome.COMPLETED).fillna(False).sum()
        )
        - sum(1 + len(each["others"]) for each in failed),
        trials=tables.trial_table(observations),
        provenance=tables.provenance_table(observations),
        experiment_text=experiment_text,
        plotly_js=Markup(get_plotlyjs()),
    )


def write_report(
    path: Path,
    recommendation: Recommendation | None,
    measured: Observed,
    **options: Any,
) -> None:
    """Write the report whole or not at all; ``options`` go to :func:`render`."""
    write_atomically(path, render(recommendation, measured, **options).encode())


def script_json(text: str) -> Markup:
    r"""Make JSON safe inside a script element: nothing in it can end the element.

    >>> script_json('{"name": "</script>"}')
    Markup('{"name": "\\u003c/script\\u003e"}')
    """
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def whole_options(text: str) -> Markup:
    """Return a text whose options of the command line are not torn at their hyphens.

    >>> whole_options("<b> with --max-batch")
    Markup('&lt;b&gt; with <span class="option">--max-batch</span>')
    """
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))


def _plots(
    subject: ReportSubject,
) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    labels = subject.labels
    drawn: dict[str, dict[str, Any]] = {}
    missing: dict[str, list[str]] = {}
    for name, plot in PLOTS.items():
        table = plot.table(subject)
        if reason := plot.why_not(table):
            missing.setdefault(reason, []).append(plot.title)
            continue
        drawn[name] = {
            "name": name,
            "title": plot.title,
            "json": script_json(plot.figure(table, labels).to_json()),
            "sentence": plot.sentence(table, labels),
            "table": tables.TextTable.of(table, labels.device_hour_word),
        }
    return drawn, missing


def _answer(recommendation: Recommendation) -> dict[str, Any]:
    said = sentences(recommendation)
    return {
        "headline": " ".join(texts(said, "unmet", "nearest", "use")),
        "tiles": _tiles(recommendation),
        "details": texts(said, *_DETAILS),
        "table": tables.TextTable.of_columns(allocations(recommendation)),
        "chosen": [row.is_chosen for row in recommendation.rows].index(True),
        "diminishing": what_diminishing_means(recommendation),
        "assumptions": texts(said, "efficiency", "rates", "assumption"),
        "unanswered": texts(said, "unanswered"),
        "next_trial": texts(said, "next_trial"),
        "ignored": texts(said, "ignored"),
        "parameters": tables.TextTable.of_columns(parameters(recommendation)),
    }


def _rates(recommendation: Recommendation | None) -> dict[str, Any]:
    columns = rates_table(recommendation.rates if recommendation else ())
    if recommendation is None or not columns:
        return {}
    return {
        "table": tables.TextTable.of_columns(columns),
        "remarks": what_rates_say(recommendation),
    }


def _tiles(recommendation: Recommendation) -> list[tuple[str, str]]:
    row, interval = recommendation.chosen, percent(recommendation.interval)
    tiles = [
        ("time", duration(row.time_s.value)),
        (f"{interval} interval", duration_range(row.time_s)),
    ]
    for resource, amount in row.spent.items():
        scale, unit = resource.unit(amount.value, recommendation.units(row))
        tiles.append((unit, number(amount.value / scale)))
    named = f"{row.scaling} " if row.scaling in ("strong", "weak") else ""
    tiles.append((f"{named}efficiency", percent(row.scaling_efficiency.value)))
    if row.probability is not None:
        tiles.append(("chance of meeting the limits", probability(row.probability)))
    return tiles


def _what_happened(observations: pd.DataFrame) -> str:
    if observations.empty:
        return "Nothing has been run yet."
    ends = ", ".join(
        f"{count:,} {str(outcome).replace('_', ' ')}"
        for outcome, count in observations["outcome"].value_counts().items()
    )
    is_imported = bool(observations["kind"].eq("imported").all())
    word = "imported row" if is_imported else "attempt"
    return f"{counted(len(observations), word)}: {ends}."

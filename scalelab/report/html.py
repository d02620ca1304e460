"""The report: one self-contained HTML file that needs no network."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from scalelab.inputs.numerals import (
    counted,
    duration,
    duration_range,
    number,
    percent,
    probability,
)
from scalelab.inputs.outcome import Outcome
from scalelab.laws.rows import Observed, prepared
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
from scalelab.report import tables
from scalelab.report.figures import PLOTS
from scalelab.report.picture import picture
from scalelab.report.subject import ReportSubject

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "What it takes": ("time_and_gpu_hours",),
    "How it scales": ("speedup", "efficiency", "throughput", "step_phases"),
    "How many samples training needs": ("samples_to_target", "metric_over_time"),
}
_DETAILS = (
    *("accuracy", "choice", "failed", "knee", "granting", "elsewhere", "price"),
    *("spot", "electricity", "chained", "campaign", "queue", "rule", "sweep_cost"),
)


# It draws scatter and bar, all that there is here, at a quarter of the whole's size
PLOTLY_JS = Path(__file__).with_name("vendor") / "plotly-basic.min.js"
_JSON = {"allow_nan": False, "separators": (",", ":")}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What a page says of one workload: its answer, or why there is none."""

    measured: Observed
    recommendation: Recommendation | None = None
    without_answer: str = ""
    evidence: Evidence = field(default_factory=Evidence)  # where no answer holds it


def render(
    parts: Mapping[str, Part],
    measured: Observed,
    *,
    title: str,
    experiment_text: str | None = None,
    results: tables.Results | None = None,
    also: str = "",
    imported: Mapping[str, Any] = MappingProxyType({}),
    streams: Callable[[], pd.DataFrame] = pd.DataFrame,
) -> str:
    """Return the report as HTML; of several parts, by name, readers pick one."""
    observations = prepared(measured).observations
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
    environment.policies["json.dumps_kwargs"] = _JSON
    template = environment.get_template("part.html.j2")

    return environment.get_template("report.html.j2").render(
        title=title,
        parts={
            name: Markup(template.render(_shown(part, happened, streams), number=at))
            for at, (name, part) in enumerate(parts.items())
        },
        is_emulated=bool(observations["emulated"].fillna(False).any()),
        happened=" ".join(filter(None, [happened, also])),
        outcomes=tables.outcome_table(observations),
        failures=failed,
        num_not_shown=int(
            observations["outcome"].ne(Outcome.COMPLETED).fillna(False).sum()
        )
        - sum(1 + len(failure["others"]) for failure in failed),
        trials=tables.trial_table(observations),
        provenance=tables.provenance_table(observations),
        imported=imported,
        import_table=tables.import_table(imported),
        experiment_text=experiment_text,
        plotly_js=Markup(PLOTLY_JS.read_text(encoding="utf-8")),
    )


def _shown(
    part: Part, happened: str, streams: Callable[[], pd.DataFrame]
) -> dict[str, Any]:
    recommendation = part.recommendation
    seen = recommendation.evidence if recommendation else part.evidence
    subject = ReportSubject.of(part.measured, recommendation, streams)
    plots, missing = _plots(subject)
    known = (
        "The figures show what was measured."
        if len(subject.rows)
        else f"Nothing to recommend from. {happened}"
    )

    return {
        "subject": subject,
        "recommendation": recommendation,
        "answer": None if recommendation is None else _answer(recommendation),
        "picture": recommendation and picture(recommendation),
        "without_answer": part.without_answer or known,
        "sections": [
            (heading, [plots[name] for name in names if name in plots])
            for heading, names in SECTIONS.items()
            if plots.keys() & set(names)
        ],
        "missing": missing.items(),
        "ways": seen.ways
        and {
            "table": tables.TextTable.of_columns(ways_table(seen.ways)),
            "remarks": what_gaps_mean(seen.ways),
        },
        "rates": _rates(recommendation),
        "evidence": {
            "memory": tables.memory_table(subject.observations),
            "steadiness": seen.steadiness.sentences if seen.steadiness else (),
            "product_check": tables.product_check_table(seen.whole_runs),
            "curves": tables.curve_table(subject) if len(subject.curves) > 1 else None,
        },
    }


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
    for name in chain(*SECTIONS.values()):
        plot = PLOTS[name]
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
    by_subject = sentences(recommendation)
    return {
        "unmet": [" ".join(texts(by_subject, "unmet", "nearest"))]
        * bool(by_subject["unmet"]),
        "headline": ", ".join(texts(by_subject, "use", "settings")) or "No row",
        "why_not": texts(by_subject, "batches", "why_not"),
        "grounds": recommendation.grounds,
        "next": recommendation.next_command,
        "tiles": _tiles(recommendation),
        "details": texts(by_subject, *_DETAILS),
        "table": tables.TextTable.of_columns(_basis_first(recommendation)),
        "chosen": -1
        if recommendation.chooses_none
        else recommendation.rows.index(recommendation.chosen),
        "diminishing": what_diminishing_means(recommendation),
        "assumptions": texts(by_subject, "efficiency", "ideal", "rates", "assumption"),
        "unanswered": texts(by_subject, "unanswered"),
        "next_trial": texts(by_subject, "next_trial"),
        "ignored": texts(by_subject, "ignored"),
        "parameters": tables.TextTable.of_columns(parameters(recommendation)),
    }


def _basis_first(recommendation: Recommendation) -> dict[str, list[str]]:
    """Return the columns of the choices: on a phone the first ones are seen."""
    columns = allocations(recommendation)
    names = [*columns]
    names.insert(names.index("interval") + 1, names.pop(names.index("basis")))
    return {name: columns[name] for name in names}


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
    if recommendation.chooses_none:
        return []
    held = f"{interval}: {duration_range(row.time_s)}"

    tiles = [(held, duration(row.time_s.value))]
    for resource, amount in row.spent.items():
        scale, unit = resource.unit(amount.value, recommendation.units(row))
        tiles.append((unit, number(amount.value / scale)))

    if row.probability is not None:
        met = " and ".join(recommendation.limits) or "the limits"
        tiles.append((f"chance of {met}", probability(row.probability)))

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

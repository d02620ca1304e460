"""The report, one self-contained HTML file that needs no network, and its figures."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from scalelab.inputs.guessed import Guided, by_guess
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
from scalelab.report import budget, samples, scaling, tables
from scalelab.report.style import empty_figure, show_in_exports
from scalelab.report.subject import Labels, ReportSubject


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A plot: its table, its figure and its sentence; of a run, its figure."""

    title: str
    table: Callable[[ReportSubject], pd.DataFrame]
    # Draws them; called only when there are some
    figure: Callable[[pd.DataFrame, Labels], go.Figure]
    sentence: Callable[[pd.DataFrame, Labels], str]
    missing: str
    is_curve: bool = True

    def why_not(self, table: pd.DataFrame) -> str | None:
        """Say why a table is not worth a figure; None where it is."""
        if table.empty:
            return self.missing
        if not self.is_curve:
            return None
        if "series" in table and table["series"].eq("ideal").all():
            return _ONLY_IDEAL
        return _ONE_COUNT if table["world_size"].nunique() == 1 else None

    def __get__(self, figures: "Figures", owner: type["Figures"]) -> go.Figure:
        table, labels = self.table(figures.subject), figures.subject.labels
        if reason := self.why_not(table):
            return empty_figure(self.title, reason, labels)
        return self.figure(table, labels)


_NOT_MEASURED = "No trial measured a step time that may be used."
_NO_ANSWER = "There is no recommendation, so the time for the whole job is unknown."
_ONLY_IDEAL = "No efficiency is known: what the baseline took is open."
_ONE_COUNT = "There is one number of devices only: a curve needs two."


class Figures(Guided):
    """The figures of a run; each says in itself what it shows and on what it rests.

    Parameters
    ----------
    recommendation
        Adds the law, its bands and the whole job's time; without it the figures show
        what was measured.
    streams
        Reads what the attempts reported while they ran: the metric over time.
    """

    _instead: ClassVar[Mapping[str, str]] = by_guess(
        {
            "figures.speedup, or another of dir(figures)": "plot show display all",
            "figures.time_and_gpu_hours": "cost time budget gpu_hours",
            "figures.trade_off": "pareto tradeoff frontier",
            "figures.step_phases": "phases breakdown steps step_time",
            "figures.metric_over_time": "loss accuracy metric curves",
            "figures.samples_to_target": "convergence samples critical_batch batch",
            "run.report()": "save html write to_html report",
        }
    )

    # Samples per second by device count, with the ideal line.
    throughput = Plot(
        title="Throughput",
        table=scaling.throughput_table,
        figure=scaling.throughput_figure,
        sentence=scaling.throughput_sentence,
        missing=_NOT_MEASURED,
    )
    # How many times faster the job is than at the baseline, and the ideal.
    speedup = Plot(
        title="Speedup of the job",
        table=scaling.speedup_table,
        figure=scaling.speedup_figure,
        sentence=scaling.speedup_sentence,
        missing=_NOT_MEASURED,
    )
    # Speedup as a share of the ideal one.
    efficiency = Plot(
        title="Scaling efficiency",
        table=scaling.efficiency_table,
        figure=scaling.efficiency_figure,
        sentence=scaling.efficiency_sentence,
        missing=_NOT_MEASURED,
    )
    # Time and device-hours for the whole job by device count.
    time_and_gpu_hours = Plot(
        title="Time and device-hours",
        table=budget.budget_table,
        figure=budget.budget_figure,
        sentence=budget.budget_sentence,
        missing=_NO_ANSWER,
    )
    # Time against device-hours, or against money where several kinds of devices are
    # compared, with the rows that no other row beats.
    trade_off = Plot(
        title="Time against device-hours",
        table=budget.trade_off_table,
        figure=budget.trade_off_figure,
        sentence=budget.trade_off_sentence,
        missing=_NO_ANSWER,
        is_curve=False,
    )
    # Training samples to the target by global batch size.
    samples_to_target = Plot(
        title="Samples to target",
        table=samples.samples_table,
        figure=samples.samples_figure,
        sentence=samples.samples_sentence,
        missing="No trial was run to a target: samples to target are not measured.",
        is_curve=False,
    )
    # The metric of the target by the time of training, on each allocation.
    metric_over_time = Plot(
        title="Metric over time",
        table=samples.metric_table,
        figure=samples.metric_figure,
        sentence=samples.metric_sentence,
        missing="No run trained to a target at a batch of the answer.",
        is_curve=False,
    )
    # Phases of a step by device count.
    step_phases = Plot(
        title="Where a step's time goes",
        table=scaling.phase_table,
        figure=scaling.phase_figure,
        sentence=scaling.phase_sentence,
        missing="No trial recorded the phases of its steps.",
        is_curve=False,
    )

    def __init__(
        self,
        observations: Observed,
        recommendation: Recommendation | None = None,
        streams: Callable[[], pd.DataFrame] = pd.DataFrame,
    ) -> None:
        self.subject = ReportSubject.of(observations, recommendation, streams)
        show_in_exports()

    def __repr__(self) -> str:
        return f"<Figures: {', '.join(PLOTS)}>"


PLOTS: Mapping[str, Plot] = MappingProxyType(
    {name: plot for name, plot in vars(Figures).items() if isinstance(plot, Plot)}
)


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


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("scalelab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    environment.filters["whole_options"] = whole_options
    environment.policies["json.dumps_kwargs"] = _JSON
    return environment


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
    environment = _environment()
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
        "picture": recommendation and budget.picture(recommendation),
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
        "why_not": texts(by_subject, "machine", "batches", "why_not"),
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

"""Every figure of a run, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.guessed import Guided, by_guess
from scalelab.laws.rows import Observed
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.report import budget, phases, samples, scaling
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
        table=phases.phase_table,
        figure=phases.phase_figure,
        sentence=phases.phase_sentence,
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

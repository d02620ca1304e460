from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from made_up_runs import planned, recommendation, strong_scaling

from scalelab.inputs.numerals import Interval
from scalelab.inputs.outcome import Support
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.records.observations import frame
from scalelab.report.html import PLOTS, Figures


@pytest.mark.parametrize("name", PLOTS)
def test_every_figure_has_a_name_and_draws(
    name: str, observations: pd.DataFrame, answered: Recommendation
) -> None:
    figure = getattr(Figures(observations, answered), name)
    assert isinstance(figure, go.Figure)
    assert figure.data
    assert "resnet_cifar on A100" in figure.layout.title.subtitle.text


@pytest.mark.parametrize("name", ["throughput", "speedup", "efficiency"])
def test_scaling_figures_carry_what_reviewers_ask_for(
    name: str, observations: pd.DataFrame, answered: Recommendation
) -> None:
    figure = getattr(Figures(observations, answered), name)
    caption = figure.layout.title.subtitle.text.replace("<br>", " ")
    for fact in ("strong scaling", "baseline: 1 GPU", "3 to 4 repeats", "80% interval"):
        assert fact in caption
    names = {trace.name for trace in figure.data}
    assert {"ideal", "law", "law, extrapolated", "measured", "recommended"} <= names


@pytest.mark.parametrize("name", PLOTS)
def test_every_figure_of_emulated_rows_is_labelled(
    name: str, observations: pd.DataFrame, answered: Recommendation
) -> None:
    figure = getattr(Figures(observations.assign(emulated=True), answered), name)
    assert "EMULATED" in figure.to_json()


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_without_numbers_says_why(name: str) -> None:
    figure = getattr(Figures(frame([])), name)
    assert not figure.data
    assert figure.layout.annotations[0].text.replace("<br>", " ") == PLOTS[name].missing


def test_without_an_answer_the_figures_show_what_was_measured(
    observations: pd.DataFrame,
) -> None:
    figure = Figures(observations).speedup
    assert {trace.name for trace in figure.data} == {"ideal", "measured", "recommended"}


def test_a_law_that_is_all_extrapolated_is_all_dashed() -> None:
    answer = recommendation(planned((8, 16), chosen=16, measured_up_to=4))
    figure = Figures(frame([]), answer).throughput
    law = [trace for trace in figure.data if (trace.name or "").startswith("law")]
    assert [(line.name, line.line.dash) for line in law] == [
        ("law, extrapolated", "dash")
    ]


def test_what_was_not_measured_here_is_dashed_too() -> None:
    answer = recommendation(planned((8, 16), chosen=16, measured_up_to=4))
    rows = tuple(replace(row, basis=Support.NOT_MEASURED) for row in answer.rows)
    figure = Figures(frame([]), replace(answer, rows=rows)).throughput
    names = {trace.name for trace in figure.data}
    assert "law, extrapolated" in names
    assert "law" not in names


def test_the_dashed_part_joins_the_solid_part(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    traces = {
        trace.name: trace for trace in Figures(observations, answered).speedup.data
    }
    solid = pd.Series(traces["law"].y, index=[1, 2, 4, 8, 16, 32]).dropna()
    dashed = pd.Series(traces["law, extrapolated"].y, index=[1, 2, 4, 8, 16, 32])
    assert solid.index.tolist() == [1, 2, 4, 8, 16]
    assert dashed.dropna().index.tolist() == [16, 32]


def taking(row: OutlookRow, time_s: Interval) -> OutlookRow:
    """Return a row whose job takes another time."""
    return replace(row, amounts={**row.amounts, "time": time_s})


def test_an_interval_without_an_end_leaves_the_figure(
    observations: pd.DataFrame,
) -> None:
    rows = planned((1, 2, 4), chosen=4, measured_up_to=4)
    open_ended = replace(rows[2].time_s, hi=float("inf"))
    never = taking(rows[2], replace(open_ended, value=float("inf")))
    rows = (rows[0], rows[1], taking(rows[2], open_ended), never)
    figures = Figures(observations, recommendation(rows))
    for figure in (figures.time_and_gpu_hours, figures.speedup, figures.efficiency):
        band = next(trace for trace in figure.data if trace.name == "80% interval")
        assert np.isfinite(np.asarray(band.y, dtype=float)).all()
        assert (np.asarray(band.y, dtype=float) > 0).all()


def test_large_runs_stay_small_on_the_page(rng: np.random.Generator) -> None:
    rows = [
        row
        for batch in (64, 128, 256, 512, 1024)
        for row in strong_scaling((1, 2, 4, 8), rng, global_batch=batch, repeats=5)
    ]
    figure = Figures(frame(rows)).throughput
    assert sum(len(trace.x) for trace in figure.data) < 30

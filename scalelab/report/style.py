"""How every figure looks: colours, axes, captions. Nothing here computes a result.

Colours keep a contrast of at least 3 to 1 against white and against the report's dark
background, and differ in lightness or shape where they are told apart by colour-blind
readers; every series also differs in its marker, dash or pattern.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from scalelab.report.labels import Labels
from scalelab.report.numerals import duration, number

Values = Sequence[float] | np.ndarray | pd.Series

BLUE, ORANGE, GREEN = "#2f7fd0", "#d4600c", "#0f8f66"
PURPLE, GOLD, GREY = "#b0609f", "#a37c00", "#7d868f"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, GOLD, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "hexagon")
PATTERNS = ("", "/", ".", "x", "-", "\\")

_TEXT = "#6b7280"
_GRID = "rgba(125, 134, 143, 0.25)"
_CAPTION_COLUMNS = 50
_MAX_TICKS = 9
_DURATION_TICKS_S = tuple(
    [base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5)]
    + [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800]
    + [3600.0 * hours for hours in (1, 2, 5, 10, 24, 48, 120, 240, 480, 1200, 2400)]
    + [86400.0 * days for days in (200, 500, 1000, 2000, 5000, 10000)]
)


def plain(text: object) -> str:
    """Escape text for plotly, which reads some tags in labels.

    >>> plain("<b>resnet</b>")
    '&lt;b&gt;resnet&lt;/b&gt;'
    """
    return html.escape(str(text), quote=False)


def band_colour(colour: str) -> str:
    """Return the fill of a band around a line of this colour."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"


def base_figure(title: str, facts: Iterable[str], labels: Labels) -> go.Figure:
    """Return an empty figure with its title and, below it, what must be known.

    Parameters
    ----------
    title
        What is shown.
    facts
        Mode, baseline, repeats, interval, ...: what a reader of the figure alone needs.
    labels
        Adds the emulated badge.
    """
    figure = go.Figure()
    wrapped = "<br>".join(
        plain(line)
        for line in textwrap.wrap("; ".join(filter(None, facts)), _CAPTION_COLUMNS)
    )
    num_lines = wrapped.count("<br>") + 1
    figure.update_layout(
        title={
            "text": f"<b>{plain(title)}</b>",
            "subtitle": {"text": wrapped, "font": {"size": 11}},
            "x": 0,
            "xref": "paper",
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 8},
            "font": {"size": 15},
        },
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": _TEXT},
        colorway=list(PALETTE),
        margin={"l": 8, "r": 12, "t": 44 + 15 * num_lines, "b": 8},
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        hoverlabel={"bgcolor": "#1f2937", "font": {"color": "#ffffff"}},
        hovermode="closest",
        dragmode=False,
        height=400,
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor=_GRID, linecolor=_GRID, zeroline=False, automargin=True)
    if labels.is_emulated:
        figure.add_annotation(
            text="<b>EMULATED</b>",
            xref="paper",
            yref="paper",
            x=1,
            y=1,
            xanchor="right",
            yanchor="bottom",
            showarrow=False,
            font={"size": 12, "color": ORANGE},
            bordercolor=ORANGE,
            borderwidth=1,
            borderpad=3,
        )
    return figure


def empty_figure(title: str, sentence: str, labels: Labels) -> go.Figure:
    """Return a figure that says why there is nothing to draw."""
    figure = base_figure(title, (), labels)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    text = "<br>".join(plain(line) for line in textwrap.wrap(sentence, 44))
    figure.add_annotation(text=text, showarrow=False, font={"size": 13})
    return figure


def count_axis(figure: go.Figure, world_sizes: Iterable[float], title: str) -> None:
    """Make the x axis logarithmic with a tick at each measured count."""
    counts = np.unique(np.asarray(list(world_sizes), dtype=float))
    ticks = _spread_out(counts)
    lo, hi = np.log10(counts[0]), np.log10(counts[-1])
    margin = 0.06 * (hi - lo) or 0.2
    figure.update_xaxes(
        type="log",
        range=[lo - margin, hi + margin],
        tickvals=ticks,
        ticktext=[f"{tick:,.0f}" for tick in ticks],
        title_text=title,
    )


def _spread_out(counts: np.ndarray) -> list[float]:
    """Keep the ends and what stands far enough from them on a logarithmic axis."""
    least = (counts[-1] / counts[0]) ** (1 / _MAX_TICKS)
    kept = [float(counts[0])]
    for count in counts[1:-1]:
        if count / kept[-1] >= least and counts[-1] / count >= least:
            kept.append(float(count))
    return kept if len(counts) == 1 else [*kept, float(counts[-1])]


def log_range(values: Values) -> list[float]:
    """Return the range of a logarithmic axis: powers of ten, with a margin."""
    positive = np.asarray(values, dtype=float)
    positive = positive[np.isfinite(positive) & (positive > 0)]
    lo, hi = np.log10(positive.min()), np.log10(positive.max())
    margin = 0.08 * (hi - lo) or 0.15
    return [float(lo - margin), float(hi + margin)]


def quantity_axis(values: Values, title: str) -> dict[str, object]:
    """Return a logarithmic axis with ticks at 1, 2 and 5 of every decade."""
    span = log_range(values)
    decades = range(int(np.floor(span[0])) - 1, int(np.ceil(span[1])) + 1)
    candidates = [base * 10.0**decade for decade in decades for base in (1, 2, 5)]
    ticks = _ticks_within(candidates, span)
    return _log_axis(ticks, [number(tick) for tick in ticks], span, title)


def duration_axis(values: Values, title: str) -> dict[str, object]:
    """Return a logarithmic axis of seconds, its ticks in the usual units of time."""
    span = log_range(values)
    ticks = _ticks_within(_DURATION_TICKS_S, span)
    return _log_axis(ticks, [_round_duration(tick) for tick in ticks], span, title)


def _round_duration(seconds: float) -> str:
    if 60 <= seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if 3600 <= seconds <= 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return duration(seconds)


def _ticks_within(candidates: Sequence[float], span: list[float]) -> list[float]:
    inside = [tick for tick in candidates if span[0] <= np.log10(tick) <= span[1]]
    step = -(-len(inside) // _MAX_TICKS) or 1
    return inside[::step]


def _log_axis(
    ticks: list[float], texts: list[str], span: list[float], title: str
) -> dict[str, object]:
    axis: dict[str, object] = {"type": "log", "range": span, "title": {"text": title}}
    # fewer than two round values in range: leave the ticks to plotly
    return axis | ({"tickvals": ticks, "ticktext": texts} if len(ticks) > 1 else {})


def add_band(
    figure: go.Figure,
    x: Sequence[float],
    lo: Sequence[float],
    hi: Sequence[float],
    *,
    colour: str,
    name: str,
    panel: int | None = None,
) -> None:
    """Draw a band between two lines, in the whole figure or in one of its panels."""
    figure.add_trace(
        go.Scatter(
            x=[*x, *reversed(x)],
            y=[*hi, *reversed(lo)],
            fill="toself",
            fillcolor=band_colour(colour),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            name=name,
            showlegend=panel in (None, 1),
        ),
        row=panel,
        col=None if panel is None else 1,
    )


def ring_chosen(
    figure: go.Figure,
    x: Values,
    y: Values,
    *,
    panel: int | None = None,
) -> None:
    """Ring the recommended allocation."""
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="markers",
            marker={
                "symbol": "circle-open",
                "size": 20,
                "color": GREEN,
                "line": {"width": 3},
            },
            name="recommended",
            showlegend=panel in (None, 1),
            hoverinfo="skip",
        ),
        row=panel,
        col=None if panel is None else 1,
    )

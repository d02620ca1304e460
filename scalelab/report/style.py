"""Style of all figures: colours, captions, and axes whose ticks people can read.

Colours keep a contrast of at least 3 to 1 against white and against the report's dark
background, and differ in lightness or shape where they are told apart by colour-blind
readers; every series also differs in its marker, dash or pattern. An axis is
logarithmic where its values differ much, and linear from zero where they do not: small
differences then look small, and an ideal line is straight on either.
"""

import html
import math
import operator
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io

from scalelab.inputs.numerals import duration, duration_unit, number
from scalelab.report.subject import Labels

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
_EMULATED = (
    f"<span style='color:{ORANGE}'><b>EMULATED: declared, not measured</b></span>"
)
_BEYOND = 1e3
_LEAST_LOG_RATIO = 6.0
_MAX_TICKS, _LINEAR_STEPS = 9, 5
_DURATION_TICKS_S = tuple(
    [base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5)]
    + [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800]
    + [3600.0 * hours for hours in (1, 2, 5, 10, 24, 48, 120, 240, 480, 1200, 2400)]
    + [86400.0 * days for days in (200, 500, 1000, 2000, 5000, 10000)]
)


def show_in_exports() -> None:
    """Let notebooks show figures in their exports, too, where nobody chose otherwise.

    In a kernel of Jupyter plotly leaves only what an open notebook can draw; an export
    to HTML then shows nothing.
    """
    if plotly.io.renderers.default == "plotly_mimetype":
        plotly.io.renderers.default = "plotly_mimetype+notebook"


def plain(text: object) -> str:
    """Escape text for plotly, which reads some tags in labels.

    >>> plain("<b>resnet</b>")
    '&lt;b&gt;resnet&lt;/b&gt;'
    """
    return html.escape(str(text), quote=False)


def base_figure(
    title: str, facts: Iterable[str], labels: Labels, num_panels: int = 1
) -> go.Figure:
    """Return an empty figure with a title and, below it, a caption."""
    figure = go.Figure()
    if num_panels > 1:
        figure.set_subplots(rows=num_panels, vertical_spacing=0.12)

    lines = textwrap.wrap("; ".join(filter(None, facts)), _CAPTION_COLUMNS)
    caption = [*([_EMULATED] if labels.is_emulated else []), *map(plain, lines)]
    figure.update_layout(
        title={
            "text": f"<b>{plain(title)}</b>",
            "subtitle": {"text": "<br>".join(caption), "font": {"size": 11}},
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
        margin={"l": 8, "r": 12, "t": 44 + 15 * len(caption), "b": 8},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
        },
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY},
        hoverlabel={"bgcolor": "#1f2937", "font": {"color": "#ffffff"}},
        hovermode="closest",
        dragmode=False,
        height=400,
    )

    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor=_GRID, linecolor=_GRID, zeroline=False, automargin=True)
        update(title_standoff=8)

    return figure


def empty_figure(title: str, sentence: str, labels: Labels) -> go.Figure:
    """Return a figure that says why there is nothing to draw."""
    figure = base_figure(title, (), labels)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    text = "<br>".join(plain(line) for line in textwrap.wrap(sentence, 44))
    return figure.add_annotation(text=text, showarrow=False, font={"size": 13})


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
    """Draw a band between two lines, in the whole figure or in one of its panels.

    An end at zero or infinity, where a target may never be reached, leaves the figure.
    """
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    known = [value for value in (*lo, *hi) if 0 < value < math.inf]
    lo, hi = (
        [min(max(value, min(known) / _BEYOND), max(known) * _BEYOND) for value in ends]
        for ends in (lo, hi)
    )
    figure.add_trace(
        go.Scatter(
            x=[*x, *reversed(x)],
            y=[*hi, *reversed(lo)],
            fill="toself",
            fillcolor=f"rgba({red}, {green}, {blue}, 0.18)",
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
    """Draw a ring around the recommended allocation."""
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


def count_axis(counts: Values, title: str) -> dict[str, Any]:
    """Return an axis with a tick at each count, as far as they stand apart."""
    distinct = np.unique(np.asarray(counts, dtype=float)).tolist()
    lo, hi = distinct[0], distinct[-1]
    if hi / lo < _LEAST_LOG_RATIO:
        kind, ends = "linear", [0.0, 1.1 * hi]
        distance, least = operator.sub, hi / _MAX_TICKS
    else:
        margin = 0.06 * np.log10(hi / lo)
        kind, ends = "log", [np.log10(lo) - margin, np.log10(hi) + margin]
        distance, least = operator.truediv, (hi / lo) ** (1 / _MAX_TICKS)

    ticks = distinct[:1]
    for count in distinct[1:-1]:
        if min(distance(count, ticks[-1]), distance(hi, count)) >= least:
            ticks.append(count)

    ticks += distinct[1:][-1:]
    return _axis(kind, ends, ticks, map(number, ticks), title)


def quantity_axis(values: Values, title: str) -> dict[str, Any]:
    """Return an axis of positive numbers, its ticks at 1, 2 and 5 of every decade."""
    lo, hi = _ends(values)
    if hi / lo < _LEAST_LOG_RATIO:
        return _linear_axis(hi, 1.0, "", title)
    decades = range(int(np.floor(np.log10(lo))) - 1, int(np.ceil(np.log10(hi))) + 1)
    ticks = [base * 10.0**decade for decade in decades for base in (1, 2, 5)]
    return _log_axis(ticks, lo, hi, number, title)


def duration_axis(values: Values, title: str) -> dict[str, Any]:
    """Return an axis of seconds, its ticks in the usual units of time."""
    lo, hi = _ends(values)
    if hi / lo < _LEAST_LOG_RATIO:
        return _linear_axis(hi, *duration_unit(hi), title)
    return _log_axis(_DURATION_TICKS_S, lo, hi, _round_duration, title)


def _ends(values: Values) -> tuple[float, float]:
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    return known.min(), known.max()


def _round_duration(seconds: float) -> str:
    if 60 <= seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if 3600 <= seconds <= 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return duration(seconds)


def _linear_axis(hi: float, unit: float, unit_name: str, title: str) -> dict[str, Any]:
    rough = hi / unit / _LINEAR_STEPS
    decade = 10.0 ** np.floor(np.log10(rough))
    bases = np.array([1, 2, 5, 10])
    step = unit * decade * bases[np.abs(bases - rough / decade).argmin()]
    ticks = np.arange(step, 1.08 * hi, step).tolist()
    texts = ["0", *(f"{tick / unit:,.6g} {unit_name}" for tick in ticks)]
    return _axis("linear", [0.0, 1.08 * hi], [0.0, *ticks], texts, title)


def _log_axis(
    candidates: Sequence[float],
    lo: float,
    hi: float,
    write: Callable[[float], str],
    title: str,
) -> dict[str, Any]:
    margin = 0.08 * np.log10(hi / lo)
    span = [np.log10(lo) - margin, np.log10(hi) + margin]
    inside = [tick for tick in candidates if span[0] <= np.log10(tick) <= span[1]]
    ticks = inside[:: -(-len(inside) // _MAX_TICKS)]
    return _axis("log", span, ticks, map(write, ticks), title)


def _axis(
    kind: str,
    ends: Sequence[float],
    ticks: Sequence[float],
    texts: Iterable[str],
    title: str,
) -> dict[str, Any]:
    return {
        "type": kind,
        "range": [float(end) for end in ends],
        "tickvals": ticks,
        "ticktext": list(texts),
        "title": {"text": title},
    }

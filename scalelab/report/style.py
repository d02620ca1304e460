"""Style of all figures: colours, axes and captions; no result is computed here.

Colours keep a contrast of at least 3 to 1 against white and against the report's dark
background, and differ in lightness or shape where they are told apart by colour-blind
readers; every series also differs in its marker, dash or pattern.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go
import plotly.io

from scalelab.report.axes import Values
from scalelab.report.labels import Labels

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


def band_colour(colour: str) -> str:
    """Return the fill of a band around a line of this colour."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"


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
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    text = "<br>".join(plain(line) for line in textwrap.wrap(sentence, 44))
    figure.add_annotation(text=text, showarrow=False, font={"size": 13})
    return figure


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

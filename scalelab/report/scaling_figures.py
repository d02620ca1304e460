"""Throughput, speedup and scaling efficiency by device count: the drawings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import counted
from scalelab.report.axes import count_axis, quantity_axis
from scalelab.report.labels import Labels
from scalelab.report.style import (
    BLUE,
    GREY,
    ORANGE,
    add_band,
    base_figure,
    ring_chosen,
)


def throughput_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`throughput_table`."""
    figure = base_figure("Throughput", labels.scaling_facts, labels)
    _draw(figure, table, "throughput_samples_per_s", "samples/s", labels)
    values = _drawn_values(table, "throughput_samples_per_s")
    figure.update_yaxes(**quantity_axis(values, "samples per second"))
    return figure


def speedup_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`speedup_table`."""
    figure = base_figure("Speedup of the job", labels.scaling_facts, labels)
    _draw(figure, table, "speedup", "times", labels)
    axis = quantity_axis(_drawn_values(table, "speedup"), "times faster than baseline")
    figure.update_yaxes(**axis)
    return figure


def efficiency_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`efficiency_table`."""
    figure = base_figure("Scaling efficiency", labels.scaling_facts, labels)
    _draw(figure, table.assign(**_in_percent(table)), "percent", "%", labels)
    top = 100 * max(1.0, float(np.nanmax(_drawn_values(table, "scaling_efficiency"))))
    figure.update_yaxes(range=[0, 1.08 * top], title_text="% of the ideal speedup")
    return figure


def _in_percent(table: pd.DataFrame) -> dict[str, pd.Series]:
    columns = {"percent": "scaling_efficiency", "lo": "lo", "hi": "hi"}
    return {name: 100 * table[column] for name, column in columns.items()}


def _drawn_values(table: pd.DataFrame, name: str) -> np.ndarray:
    return table[[name, "lo", "hi"]].to_numpy(dtype=float).ravel()


def _draw(
    figure: go.Figure, table: pd.DataFrame, name: str, unit: str, labels: Labels
) -> None:
    parts = {str(series): rows for series, rows in table.groupby("series")}
    if "ideal" in parts:
        _draw_ideal(figure, parts["ideal"], name)
    if "law" in parts:
        _draw_law(figure, parts["law"], name, unit, labels.interval)
    points = (
        ("other configuration", "others, extremes", GREY, "x-thin-open"),
        ("measured", "measured", ORANGE, "circle"),
    )
    for series, title, colour, symbol in points:
        if series in parts:
            _draw_points(figure, parts[series], name, unit, title, colour, symbol)
    chosen = table[table["is_chosen"]]
    ring_chosen(figure, chosen["world_size"], chosen[name])
    figure.update_xaxes(count_axis(table["world_size"], labels.devices))


def _draw_ideal(figure: go.Figure, rows: pd.DataFrame, name: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=rows["world_size"],
            y=rows[name],
            mode="lines",
            line={"color": GREY, "dash": "dot", "width": 2},
            name="ideal",
            hoverinfo="skip",
        )
    )


def _draw_law(
    figure: go.Figure, rows: pd.DataFrame, name: str, unit: str, interval: str
) -> None:
    rows = rows.sort_values("world_size")
    add_band(
        figure,
        rows["world_size"].tolist(),
        rows["lo"].tolist(),
        rows["hi"].tolist(),
        colour=BLUE,
        name=interval,
    )
    beyond = rows["basis"].eq("extrapolated").to_numpy()
    for title, dash, part in _inside_and_beyond(rows, beyond):
        figure.add_trace(
            go.Scatter(
                x=part["world_size"],
                y=part[name],
                mode="lines+markers",
                line={"color": BLUE, "dash": dash, "width": 2.5},
                marker={"size": 6},
                name=title,
                customdata=part["basis"],
                hovertemplate=f"%{{x}}: %{{y:.3s}} {unit} (%{{customdata}})"
                "<extra>law</extra>",
            )
        )


def _inside_and_beyond(
    rows: pd.DataFrame, beyond: np.ndarray
) -> list[tuple[str, str, pd.DataFrame]]:
    """Split the law where it leaves the measured range, keeping the line joined."""
    if not beyond.any():
        return [("law", "solid", rows)]
    if beyond.all():
        return [("law, extrapolated", "dash", rows)]
    touches = beyond | np.append(beyond[1:], False) | np.insert(beyond[:-1], 0, False)
    inside = rows.mask(np.broadcast_to(beyond[:, None], rows.shape))
    outside = rows.mask(np.broadcast_to(~touches[:, None], rows.shape))
    return [("law", "solid", inside), ("law, extrapolated", "dash", outside)]


def _draw_points(
    figure: go.Figure,
    rows: pd.DataFrame,
    name: str,
    unit: str,
    title: str,
    colour: str,
    symbol: str,
) -> None:
    sizes = rows[["num_nodes", "num_repeats"]].to_numpy(dtype=float)
    details = [
        counted(nodes, "node") + (f", {counted(n, 'repeat')}" if n > 0 else "")
        for nodes, n in sizes
    ]
    figure.add_trace(
        go.Scatter(
            x=rows["world_size"],
            y=rows[name],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": (rows["hi"] - rows[name]).tolist(),
                "arrayminus": (rows[name] - rows["lo"]).tolist(),
                "thickness": 1.5,
                "width": 4,
            },
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 9},
            name=title,
            customdata=details,
            hovertemplate=f"%{{x}}: %{{y:.3s}} {unit}, %{{customdata}}"
            f"<extra>{title}</extra>",
        )
    )

"""Time and device-hours by device count, and the trade between them.

The first picture of the page shows time against spending, one point for each row. The
page draws that picture by itself (``picture.js``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import (
    counted,
    device_time_unit,
    duration,
    duration_ends,
    number,
    percent,
)
from scalelab.inputs.outcome import Support
from scalelab.kinds.resources import (
    DEVICE_HOURS,
    MONEY,
    TIME,
    Resource,
    weighed_most,
)
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.report.style import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    add_band,
    base_figure,
    count_axis,
    duration_axis,
    quantity_axis,
    ring_chosen,
)
from scalelab.report.subject import ALLOCATION, Labels, ReportSubject

_LOOKS = {
    Support.MEASURED: "measured",
    Support.INTERPOLATED: "predicted",
    Support.EXTRAPOLATED: "predicted",
    Support.NOT_MEASURED: "believed",
}
_AXIS = ("type", "range", "tickvals", "ticktext")


def picture(result: Recommendation) -> Mapping[str, Any] | None:
    """Return points, limits, and axes with their ticks; None where no time is known.

    Spending is money where all rows have a price, else device-hours of the chosen
    device: those of others are not to be compared with them.
    """
    chosen, are_priced = result.chosen, all(row.cost for row in result.rows)
    spent = weighed_most([MONEY, DEVICE_HOURS][not are_priced :])
    comparable = result.rows if are_priced else result.alike

    rows = [row for row in comparable if math.isfinite(row.time_s.value)]
    if not rows:
        return None

    scale, unit = spent.unit(chosen.spent[spent].value, result.units(chosen))
    named = are_priced and bool(result.devices)
    points = [_point(row, spent, scale, unit, names_device=named) for row in rows]
    for row, point in zip(rows, [*points], strict=True):
        points += _left_out(result, row, point)

    most_time, most_spent = (
        result.limited.get(resource.name) for resource in (TIME, spent)
    )
    if most_spent is not None:
        most_spent /= scale

    amounts = [point["x"] for point in points]
    return {
        "x": _axis(quantity_axis(_with_limit(amounts, most_spent), unit)),
        "y": _axis(duration_axis(_with_limit(_times(points), most_time), "time")),
        "unit": unit,
        "scale": scale,
        "resource": spent.name,
        "looks": _LOOKS,
        "badge": "EMULATED" if result.is_emulated else "",
        "points": points,
        "most_time": most_time,
        "most_spent": most_spent,
        "interval": percent(result.interval),
    }


def _times(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return times, and the ends of intervals but for those of beliefs.

    A belief may be so wide that its interval would leave no room for the others.
    """
    solid = [point for point in points if point["look"] != "believed"] or points
    ends = [point[end] for point in solid for end in ("lo", "hi")]
    return [point["y"] for point in points] + ends


def _point(
    row: OutlookRow, spent: Resource, scale: float, unit: str, *, names_device: bool
) -> dict[str, Any]:
    amount, time = row.spent[spent].value / scale, row.time_s
    label = f"{row.world_size:,} {row.device if names_device else ''}".rstrip()
    return {
        "x": amount,
        "y": time.value,
        "lo": time.lo,
        "hi": time.hi,
        "name": label,
        "look": _LOOKS[Support(row.basis)],
        "is_front": row.is_pareto,
        "is_chosen": row.is_chosen and row.barred_by != "contradicted",
        "title": f"{label}: {duration(time.value)} [{duration_ends(time)}], "
        f"{number(amount)} {unit}, {row.basis}",
    }


def _left_out(
    result: Recommendation, row: OutlookRow, point: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield a point for each run of a row that was measured and left out."""
    place = {"allocation": row.allocation, **asdict(row.batch)}
    doubted = (fact.values for fact in result.facts if fact.kind == "doubted")
    for values in doubted:
        if all(values[name] == place[name] for name in values.keys() & place.keys()):
            time_s, name = values["factor"] * point["y"], f"{point['name']} left out"
            yield {
                **point,
                **dict.fromkeys(("y", "lo", "hi"), time_s),
                **dict.fromkeys(("is_front", "is_chosen"), False),
                "x": values["factor"] * point["x"],
                "name": name,
                "look": "doubted",
                "title": f"{name}: {duration(time_s)} as measured",
            }


def _with_limit(values: Iterable[float], limit: float | None) -> list[float]:
    """Return the finite values, with a limit that is not far from them."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    if limit is not None and min(known) / 4 < limit < 4 * max(known):
        known.append(limit)
    return known


def _axis(layout: Mapping[str, Any]) -> dict[str, Any]:
    return {name: layout[name] for name in _AXIS}


_COLUMNS = [
    "allocation",
    *ALLOCATION,
    "global_batch_size",
    *("time_s", "time_lo_s", "time_hi_s"),
    *("gpu_hours", "gpu_hours_lo", "gpu_hours_hi"),
    *("basis", "is_pareto", "is_chosen"),
]

_MAX_NAMES = 10
_PANELS = {
    1: ("time_s", "time_lo_s", "time_hi_s"),
    2: ("gpu_hours", "gpu_hours_lo", "gpu_hours_hi"),
}


def budget_table(subject: ReportSubject) -> pd.DataFrame:
    """Return what the whole job takes at every allocation of the plan."""
    rows = [
        (
            *(row.allocation, row.world_size, row.num_nodes),
            row.batch.global_batch_size,
            *(row.time_s.value, row.time_s.lo, row.time_s.hi),
            *(row.gpu_hours.value, row.gpu_hours.lo, row.gpu_hours.hi),
            *(row.basis, row.is_pareto, row.is_chosen),
        )
        for row in subject.plan
        if math.isfinite(row.time_s.value)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def trade_off_table(subject: ReportSubject) -> pd.DataFrame:
    """Return the points of the report's first picture: time and spending."""
    drawn = subject.recommendation and picture(subject.recommendation)
    points, unit = (drawn["points"], drawn["unit"]) if drawn else ([], "")
    return pd.DataFrame(points).assign(unit=unit)


def budget_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`budget_table`: time above, device-hours below, by count."""
    scale, unit = _device_time_unit(table, labels)
    title = f"Time and {unit} of the job"
    facts = (labels.curve, labels.mode, labels.bands)
    figure = base_figure(title, facts, labels, num_panels=len(_PANELS))
    rows = table.sort_values("world_size")

    rows = rows.assign(**(rows[list(_PANELS[2])] / scale))
    for panel, name in ((1, "time"), (2, unit)):
        _panel(figure, rows, panel, name, labels.interval)

    figure.update_xaxes(count_axis(rows["world_size"], labels.devices))
    figure.update_xaxes(title_text="", row=1, col=1)
    times, hours = (rows[[*ends]].to_numpy().ravel() for _, *ends in _PANELS.values())
    figure.update_yaxes(duration_axis(times, "time"), row=1, col=1)
    figure.update_yaxes(quantity_axis(hours, unit), row=2, col=1)
    return figure.update_layout(height=540)


def _device_time_unit(table: pd.DataFrame, labels: Labels) -> tuple[float, str]:
    chosen = table.loc[table["is_chosen"], "gpu_hours"]
    known = chosen if len(chosen) else table["gpu_hours"]
    return device_time_unit(float(known.iloc[0]), labels.hours)


def _panel(
    figure: go.Figure, rows: pd.DataFrame, panel: int, name: str, interval: str
) -> None:
    middle, lo, hi = _PANELS[panel]
    colour, write = (BLUE, duration) if panel == 1 else (PURPLE, number)
    x, ends = rows["world_size"].tolist(), (rows[lo].tolist(), rows[hi].tolist())
    add_band(figure, x, *ends, colour=colour, name=interval, panel=panel)
    figure.add_trace(
        go.Scatter(
            x=x,
            y=rows[middle],
            mode="lines+markers",
            line={"color": colour, "width": 2.5},
            marker={
                "size": 8,
                "symbol": [
                    "circle" if basis == "measured" else "circle-open"
                    for basis in rows["basis"]
                ],
                "line": {"color": colour, "width": 2},
            },
            name=name,
            customdata=rows[middle].map(write).tolist(),
            text=rows["basis"],
            hovertemplate="%{x}: %{customdata} (%{text})<extra></extra>",
        ),
        row=panel,
        col=1,
    )

    chosen = rows[rows["is_chosen"]]
    ring_chosen(figure, chosen["world_size"], chosen[middle], panel=panel)


def trade_off_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`trade_off_table`: time against spending, the frontier joined."""
    unit = table["unit"].iloc[0]
    facts = (labels.curve, f"numbers at points: {labels.devices}")
    figure = base_figure(f"What time costs in {unit}", facts, labels)
    front = table["is_front"]

    parts = (
        (table[front], "worth considering", ORANGE, "lines+markers+text", "circle"),
        (table[~front], "another row is better in both", GREY, "markers+text", "x"),
    )
    for rows, name, colour, mode, symbol in parts:
        rows = rows.sort_values("y")
        figure.add_trace(
            go.Scatter(
                x=rows["x"],
                y=rows["y"],
                mode=mode,
                text=_few_names(rows),
                textposition="top right",
                cliponaxis=False,
                line={"color": colour, "width": 2},
                marker={"color": colour, "size": 9, "symbol": symbol},
                name=name,
                customdata=rows["title"],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )

    chosen = table[table["is_chosen"]]
    ring_chosen(figure, chosen["x"], chosen["y"])
    figure.update_xaxes(quantity_axis(table["x"], unit))
    return figure.update_yaxes(duration_axis(table["y"], "time"))


def _few_names(rows: pd.DataFrame) -> list[str]:
    # of many points only the ends and the chosen one are named
    is_end = rows.index.isin(rows.index[[0, -1]]) if len(rows) else False
    is_named = rows["is_chosen"] | is_end | (len(rows) <= _MAX_NAMES)
    return rows["name"].where(is_named, "").tolist()


def budget_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what the fastest and the cheapest rows of :func:`budget_table` trade."""
    fastest = table.sort_values("time_s").iloc[0]
    cheapest = table.sort_values("gpu_hours").iloc[0]

    slow, fast = (
        counted(row["world_size"], labels.device_word) for row in (cheapest, fastest)
    )
    if slow == fast:
        return f"The choice of {fast} is both the fastest and the cheapest."

    faster = number(cheapest["time_s"] / fastest["time_s"])
    dearer = percent(fastest["gpu_hours"] / cheapest["gpu_hours"] - 1)
    return (
        f"The fastest choice, {fast}, is {faster} times as fast as the cheapest, "
        f"{slow}, and takes {dearer} more {labels.device_hour_word}."
    )


def trade_off_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say how to read the trade-off and how many rows are worth considering."""
    beaten, unit = sum(~table["is_front"]), table["unit"].iloc[0]
    which = "No allocation is" if beaten == 0 else f"{beaten} of {len(table)} are"
    return (
        f"Lower is faster, left is cheaper. {which} beaten by another "
        f"in both time and {unit}."
    )

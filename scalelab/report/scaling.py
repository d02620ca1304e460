"""Throughput, speedup, efficiency, and the phases of a step, by device count."""

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    estimate,
    number,
    percent,
)
from scalelab.inputs.outcome import Support
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.report.style import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    ORANGE,
    PATTERNS,
    PURPLE,
    add_band,
    base_figure,
    count_axis,
    quantity_axis,
    ring_chosen,
)
from scalelab.report.subject import ALLOCATION, Labels, ReportSubject

_POINT = (
    *ALLOCATION,
    "local_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
)
_RATE = "samples per second"
_BEYOND = (Support.EXTRAPOLATED, Support.NOT_MEASURED)
_EFFICIENCY = ["series", *ALLOCATION, "scaling_efficiency", "lo", "hi"]
_EFFICIENCY += ["baseline_world_size", "num_repeats", "basis", "is_chosen"]


def measured_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Reduce repeats to one point per allocation and batch arithmetic."""
    columns = [*_POINT, "num_repeats", "throughput_samples_per_s", "lo", "hi"]
    points = []
    for key, group in rows.groupby(list(_POINT)):
        throughput = group["throughput_samples_per_s"]
        lo, hi = throughput.min(), throughput.max()
        if len(group) == 1:
            ends_s = group.iloc[0][["step_time_hi_s", "step_time_lo_s"]]
            lo, hi = (
                group["samples_per_step"].fillna(group["global_batch_size"]).iloc[0]
                / ends_s
            )
        points.append((*key, len(group), throughput.median(), lo, hi))

    return pd.DataFrame(points, columns=columns)


def throughput_table(subject: ReportSubject) -> pd.DataFrame:
    """Return throughput by count: the law, what was measured, the ideal."""
    measured = measured_points(subject.planned)
    rows_by_size = {row.world_size: row for row in subject.plan}
    for time, rate in (
        ("job_time_s", "throughput_samples_per_s"),
        ("job_time_lo_s", "hi"),
        ("job_time_hi_s", "lo"),
    ):
        pairs = zip(measured["world_size"], measured[rate], strict=True)
        times = [_job_time(rows_by_size.get(size), found) for size, found in pairs]
        measured[time] = pd.Series(times, index=measured.index, dtype=float)

    measured["series"] = "measured"
    others = measured_points(subject.rows[~subject.rows["is_planned"]])
    ranked = others.sort_values("throughput_samples_per_s").groupby("world_size")
    extremes = pd.concat([ranked.head(1), ranked.tail(1)])
    extremes = extremes.drop_duplicates(list(_POINT))
    extremes = extremes.assign(series="other configuration")
    table = _stacked([_law_rows(subject.plan), measured, extremes])

    start = _baseline_point(table, subject)
    if start is not None:
        counts = np.sort(table["world_size"].unique())
        rate = start["throughput_samples_per_s"] / start["world_size"]
        ideal = {
            "series": "ideal",
            "world_size": counts,
            "throughput_samples_per_s": rate * counts,
            "job_time_s": start["job_time_s"] * start["world_size"] / counts,
        }
        table = _stacked([table, pd.DataFrame(ideal)])

    return table.assign(is_chosen=table["is_chosen"].eq(True))


def _job_time(row: OutlookRow | None, samples_per_s: float) -> float:
    """Return the time of the job at a measured rate, its other parts as in its row."""
    if row is None:
        return 1 / samples_per_s
    slower_s = 1 / samples_per_s - 1 / row.throughput_samples_per_s.value
    return row.time_s.value + row.samples.value * slower_s


def _stacked(parts: list[pd.DataFrame]) -> pd.DataFrame:
    # pandas warns when an empty part decides on a dtype
    found = [part for part in parts if len(part)] or [pd.DataFrame()]
    columns = ["series", *ALLOCATION, "global_batch_size", "throughput_samples_per_s"]
    columns += ["lo", "hi", "num_repeats", "basis", "is_chosen"]
    columns += ["job_time_s", "job_time_lo_s", "job_time_hi_s"]
    return pd.concat(found, ignore_index=True).reindex(columns=columns)


def _law_rows(plan: tuple[OutlookRow, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "series": "law",
            "world_size": row.world_size,
            "num_nodes": row.num_nodes,
            "global_batch_size": row.batch.global_batch_size,
            "throughput_samples_per_s": row.throughput_samples_per_s.value,
            "lo": row.throughput_samples_per_s.lo,
            "hi": row.throughput_samples_per_s.hi,
            "basis": row.basis,
            "is_chosen": row.is_chosen,
            "job_time_s": row.time_s.value,
            "job_time_lo_s": row.time_s.lo,
            "job_time_hi_s": row.time_s.hi,
        }
        for row in plan
    )


def _baseline_point(table: pd.DataFrame, subject: ReportSubject) -> pd.Series | None:
    measured = table[table["series"] == "measured"]
    if row := subject.baseline:
        measured = _law_rows((row,))
    if measured.empty:
        return None
    return measured.sort_values(["world_size", "num_nodes"]).iloc[0]


def speedup_table(subject: ReportSubject) -> pd.DataFrame:
    """Return how many times faster than at the baseline the job is, and its samples.

    The job gains less than its samples per second where a larger batch needs more
    samples, and where start-up and evaluations remain.
    """
    table = throughput_table(subject)
    start = _baseline_point(table, subject)

    table = table[table["job_time_s"].lt(math.inf)]
    if start is not None:
        ends = {"speedup": "job_time_s", "lo": "job_time_hi_s", "hi": "job_time_lo_s"}
        times = {name: start["job_time_s"] / table[end] for name, end in ends.items()}
        rates = table["throughput_samples_per_s"] / start["throughput_samples_per_s"]
        places = table.loc[table["series"] == "law", [*ALLOCATION]]
        alone = places.assign(
            series=_RATE, speedup=rates[places.index], is_chosen=False
        )
        table = pd.concat([table.assign(**times), alone]).assign(
            baseline_world_size=start["world_size"]
        )

    columns = ["series", *ALLOCATION, "speedup", "lo", "hi", "baseline_world_size"]
    columns += ["num_repeats", "basis", "is_chosen"]
    return table.reindex(columns=columns).reset_index(drop=True)


def efficiency_table(subject: ReportSubject) -> pd.DataFrame:
    """Return the samples per second and device as a share of the baseline's.

    It is the efficiency that the answer says; what was measured has it in proportion
    to its rate.
    """
    table = throughput_table(subject)
    start = _baseline_point(table, subject)
    if start is None:
        return table.reindex(columns=_EFFICIENCY)

    rate = start["throughput_samples_per_s"] / start["world_size"]
    ideal = table["world_size"] * rate
    for row in subject.plan:
        ideal_throughput = (
            row.throughput_samples_per_s.value / row.scaling_efficiency.value
        )
        is_other = table["series"].ne("ideal") & table["world_size"].eq(row.world_size)
        ideal = ideal.mask(is_other, ideal_throughput)

    shares = {n: table[n] / ideal for n in ("throughput_samples_per_s", "lo", "hi")}
    table = table.assign(**shares, baseline_world_size=start["world_size"])

    table = table.rename(columns={"throughput_samples_per_s": "scaling_efficiency"})
    for row in subject.plan:
        is_row = table["series"].eq("law") & table["world_size"].eq(row.world_size)
        ends = row.scaling_efficiency.lo, row.scaling_efficiency.hi
        table.loc[is_row, ["lo", "hi"]] = ends

    is_shown = table["series"].ne("other configuration")
    return table.loc[is_shown, _EFFICIENCY].reset_index(drop=True)


def throughput_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`throughput_table`."""
    name = "throughput_samples_per_s"
    figure = _drawn("Throughput", table, name, "samples/s", labels)
    axis = quantity_axis(_drawn_values(table, name), "samples per second")
    return figure.update_yaxes(**axis)


def speedup_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`speedup_table`."""
    figure = _drawn("Speedup of the job", table, "speedup", "times", labels)
    axis = quantity_axis(_drawn_values(table, "speedup"), "times faster than baseline")
    return figure.update_yaxes(**axis)


def efficiency_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`efficiency_table`."""
    shares = {n: 100 * table[n] for n in ("scaling_efficiency", "lo", "hi")}
    table, name = table.assign(**shares), "scaling_efficiency"
    figure = _drawn("Scaling efficiency", table, name, "%", labels)
    top = max(100.0, float(np.nanmax(_drawn_values(table, name))))
    return figure.update_yaxes(
        range=[0, 1.08 * top], title_text="% of the baseline's rate per device"
    )


def _drawn_values(table: pd.DataFrame, name: str) -> np.ndarray:
    return table[[name, "lo", "hi"]].to_numpy(dtype=float).ravel()


def _drawn(
    title: str, table: pd.DataFrame, name: str, unit: str, labels: Labels
) -> go.Figure:
    figure = base_figure(title, labels.scaling_facts, labels)
    parts = {str(series): rows for series, rows in table.groupby("series")}
    for series, colour, dash in (("ideal", GREY, "dot"), (_RATE, PURPLE, "dashdot")):
        if series in parts:
            figure.add_trace(
                go.Scatter(
                    x=parts[series]["world_size"],
                    y=parts[series][name],
                    mode="lines",
                    line={"color": colour, "dash": dash, "width": 2},
                    name=series,
                    hoverinfo="skip",
                )
            )

    if "law" in parts:
        _draw_law(figure, parts["law"], name, unit, labels.interval)

    for series, title, colour, symbol in (
        ("other configuration", "others, extremes", GREY, "x-thin-open"),
        ("measured", "measured", ORANGE, "circle"),
    ):
        if series in parts:
            marker = {"color": colour, "symbol": symbol, "size": 9}
            _draw_points(figure, parts[series], name, unit, title, marker)

    chosen = table[table["is_chosen"]]
    ring_chosen(figure, chosen["world_size"], chosen[name])
    return figure.update_xaxes(count_axis(table["world_size"], labels.devices))


def _draw_law(
    figure: go.Figure, rows: pd.DataFrame, name: str, unit: str, interval: str
) -> None:
    rows = rows.sort_values("world_size")
    x, lo, hi = (rows[column].tolist() for column in ("world_size", "lo", "hi"))
    add_band(figure, x, lo, hi, colour=BLUE, name=interval)
    beyond = rows["basis"].isin(_BEYOND).to_numpy()

    # the dashed line begins and ends at what was measured, so the two lines are joined
    touches = beyond | np.append(beyond[1:], False) | np.insert(beyond[:-1], 0, False)
    for title, dash, hidden in (
        ("law", "solid", beyond),
        ("law, extrapolated", "dash", ~touches),
    ):
        if hidden.all():
            continue
        part = rows.mask(np.broadcast_to(hidden[:, None], rows.shape))
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


def _draw_points(
    figure: go.Figure,
    rows: pd.DataFrame,
    name: str,
    unit: str,
    title: str,
    marker: dict[str, Any],
) -> None:
    sizes = rows[["num_nodes", "num_repeats"]].to_numpy(dtype=float)
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
            marker=marker,
            name=title,
            customdata=[
                counted(nodes, "node") + (f", {counted(n, 'repeat')}" if n > 0 else "")
                for nodes, n in sizes
            ],
            hovertemplate=f"%{{x}}: %{{y:.3s}} {unit}, %{{customdata}}"
            f"<extra>{title}</extra>",
        )
    )


def throughput_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`throughput_table` shows."""
    at, count = _telling_row(table, labels)
    missing = "" if (table["series"] == "law").any() else " No law could be drawn."
    rate = Interval(value=at["throughput_samples_per_s"], lo=at["lo"], hi=at["hi"])
    return (
        f"{count}: {estimate(rate)} samples per second. The "
        f"dotted line is what would be reached if every {labels.device_word} added as "
        f"much as those of the baseline.{missing}"
    )


def speedup_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`speedup_table` shows."""
    at, count = _telling_row(table, labels)
    if at["world_size"] == at["baseline_world_size"]:
        return f"{count} is the baseline of every speedup here."

    ideal = number(at["world_size"] / at["baseline_world_size"])
    is_rate = table["series"].eq(_RATE) & table["world_size"].eq(at["world_size"])
    rates = table.loc[is_rate, "speedup"]
    pace = f", at {number(rates.max())} times the {_RATE}" if len(rates) else ""

    return (
        f"With {count} the job runs {number(at['speedup'])} times as fast as on the "
        f"baseline{pace}; {ideal} times would be ideal."
    )


def efficiency_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`efficiency_table` shows."""
    at, count = _telling_row(table, labels)
    if at["world_size"] == at["baseline_world_size"]:
        return f"{count} is the baseline, so its efficiency is 100%."

    share = percent(at["scaling_efficiency"])
    if at["scaling_efficiency"] > 1:
        return (
            f"With {count} each does {share} of what one does at the baseline. More "
            "than 100% comes from another batch than the baseline's, from data that "
            "fits into caches, or from a slow baseline."
        )

    return (
        f"With {count}, {share} of what they could do at the baseline's efficiency is "
        "used; the rest goes into exchanging gradients, waiting for slower ranks and "
        "fixed costs."
    )


def _telling_row(table: pd.DataFrame, labels: Labels) -> tuple[pd.Series, str]:
    """Return the recommended row, else that of the largest count, and its devices."""
    rows = table[table["series"].isin(["law", "measured"])]
    chosen = rows[rows["is_chosen"]]
    row = (chosen if len(chosen) else rows.sort_values("world_size")).iloc[-1]
    return row, counted(row["world_size"], labels.device_word)


PHASES = {
    "data_wait_s": ("waiting for data", GOLD),
    "compute_s": ("forward and backward", BLUE),
    "exposed_sync_s": ("gradient exchange, not hidden", ORANGE),
    "optimizer_s": ("optimizer", GREEN),
    "other_s": ("other", GREY),
}
_MEASURED = [name for name in PHASES if name != "other_s"]


def phase_table(subject: ReportSubject) -> pd.DataFrame:
    """Return the parts of a step at the plan's batch, median over repeats.

    Where trials of the plan's batch did not run or record phases, the nearest local
    batch counts that did.

    Returns
    -------
    DataFrame
        ``world_size``, ``num_nodes``, ``local_batch_size``, ``is_planned_batch``,
        ``step_time_s``, and, in seconds per step,
        ``data_wait_s``, ``compute_s``, ``exposed_sync_s``, ``optimizer_s`` and
        ``other_s`` (what the phases leave of the step; 0 where they exceed it). A phase
        that was not recorded is missing. Allocations without any phase are left out.
    """
    rows = subject.rows.dropna(subset=["compute_s"])
    rows = rows[_nearest_batch(subject, rows)].rename(
        columns={"is_planned": "is_planned_batch"}
    )
    keys = [*ALLOCATION, "local_batch_size", "is_planned_batch"]
    columns = ["step_time_s", *_MEASURED]
    table = rows.groupby(keys)[columns].median().reset_index()
    rest = table["step_time_s"] - table[_MEASURED].sum(axis=1)
    return table.assign(other_s=rest.clip(lower=0.0))


def _nearest_batch(subject: ReportSubject, rows: pd.DataFrame) -> pd.Series:
    """Mark the rows with the batch of the plan at their allocation, or nearest to it.

    Without a plan, and so without a batch to be near to, those that are planned.
    """
    if not subject.plan:
        return rows["is_planned"]
    chosen = next(row for row in subject.plan if row.is_chosen)
    wanted = {(row.world_size, row.num_nodes): row.batch for row in subject.plan}
    distances = []
    names = ["is_planned", "local_batch_size", "gradient_accumulation_steps"]

    values = rows[[*ALLOCATION, *names]].itertuples(index=False)
    for size, nodes, is_planned, local, steps in values:
        batch = wanted.get((size, nodes), chosen.batch)
        more = abs(math.log(local / batch.local_batch_size))
        longer = abs(math.log(steps / batch.gradient_accumulation_steps))
        distances.append((not is_planned, more, longer, local))

    distance = pd.Series(distances, rows.index, dtype=object)
    return distance == distance.groupby([rows[n] for n in ALLOCATION]).transform("min")


def phase_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`phase_table` as shares of the step."""
    figure = base_figure("Where a step's time goes", labels.scaling_facts[:2], labels)
    whole = table[list(PHASES)].sum(axis=1)
    ticks = [
        f"<b>{count:.0f}</b><br>{duration(step)}"
        for count, step in table[["world_size", "step_time_s"]].to_numpy(dtype=float)
    ]

    for (name, (title, colour)), pattern in zip(PHASES.items(), PATTERNS, strict=False):
        figure.add_trace(
            go.Bar(
                x=list(range(len(table))),
                y=100 * table[name] / whole,
                name=title,
                marker={
                    "color": colour,
                    # tells bars apart where colours do not
                    "pattern": {
                        "shape": pattern,
                        "fillmode": "overlay",
                        "solidity": 0.2,
                        "size": 6,
                    },
                },
                customdata=[duration(value) for value in table[name].fillna(0.0)],
                hovertemplate=f"{title}: %{{customdata}} (%{{y:.0f}}%)<extra></extra>",
            )
        )

    title = f"{labels.devices}, and the time of one step"
    figure.update_xaxes(
        tickvals=list(range(len(table))), ticktext=ticks, title_text=title
    )
    figure.update_yaxes(title_text="% of the step", range=[0, 100])
    return figure.update_layout(barmode="stack", legend_traceorder="normal")


def phase_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say how the share of the gradient exchange grows along :func:`phase_table`."""
    far = table.loc[~table["is_planned_batch"], "world_size"]
    instead = ""
    if len(far):
        sizes = ", ".join(f"{size:.0f}" for size in far)
        instead = (
            f" At {sizes} {labels.devices} the recommended batch was not measured; "
            "shown is the nearest that was."
        )

    shares = (table["exposed_sync_s"] / table["step_time_s"]).tolist()
    if len(table) == 1 or any(map(math.isnan, shares)):
        return (
            f"The parts of one optimiser step, as measured inside the ranks.{instead}"
        )

    first, *_, last = table["world_size"]
    return (
        f"Gradient exchange that computation does not hide takes {percent(shares[0])} "
        f"of a step at {first:.0f} and {percent(shares[-1])} at {last:.0f} "
        f"{labels.devices}.{instead}"
    )

"""Samples to target by global batch size; runs that stopped earlier are bounds."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import counted, number
from scalelab.inputs.target import MetricMode, Target
from scalelab.records.columns import TARGET_COLUMNS
from scalelab.report.style import (
    DASHES,
    GREEN,
    PALETTE,
    SYMBOLS,
    base_figure,
    count_axis,
    plain,
    quantity_axis,
)
from scalelab.report.subject import Labels, ReportSubject

_TARGET = [*TARGET_COLUMNS]
_COLUMNS = [
    "target",
    "lr_rule",
    "global_batch_size",
    "seed",
    "samples",
    "is_lower_bound",
    "is_planned_batch",
]


def samples_table(subject: ReportSubject) -> pd.DataFrame:
    """Return training samples to the target that most trials had."""
    observations = subject.observations
    if workloads := set(subject.rows["workload"].dropna()):
        observations = observations[observations["workload"].isin(workloads)]
    reached = observations["reached_target"].fillna(False).astype(bool)
    censored = observations["outcome"].isin(["target_not_reached", "pruned"])
    samples, seen = (
        observations[name].astype("Float64").astype(float)
        for name in ("samples_to_target", "num_samples")
    )
    samples = samples.where(reached, seen)
    known = samples.gt(0) & (reached | censored.astype(bool))
    rows = observations.assign(samples=samples, is_lower_bound=~reached)[known]
    rows = rows.dropna(subset=[*_TARGET, "global_batch_size"])
    if rows.empty:
        return pd.DataFrame(columns=_COLUMNS)
    metric, mode, value = rows[_TARGET].value_counts().index[0]
    is_same = (rows[_TARGET] == [metric, mode, value]).all(axis=1)
    target = Target(metric=metric, mode=MetricMode(mode), value=float(value))
    chosen = {row.batch.global_batch_size for row in subject.plan if row.is_chosen}
    rows = rows[is_same].assign(target=str(target))
    rows["lr_rule"] = rows["lr_rule"].fillna("none")
    rows["is_planned_batch"] = rows["global_batch_size"].isin(chosen)
    rows = rows[_COLUMNS].astype({"samples": float, "global_batch_size": float})
    order = ["lr_rule", "global_batch_size", "seed"]
    return rows.sort_values(order, ignore_index=True)


def samples_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`samples_table`; lower bounds are triangles."""
    seeds = counted(table["seed"].nunique(), "seed")
    facts = (labels.curve, seeds, "lines: medians of runs that reached it")
    figure = base_figure(f"Samples to {table['target'].iloc[0]}", facts, labels)
    for index, (rule, rows) in enumerate(table.groupby("lr_rule")):
        _draw_rule(figure, rows, f"{rule} LR rule", index)
    if table["is_lower_bound"].any():
        figure.add_trace(_lower_bounds(table[table["is_lower_bound"]]))
    for batch in table.loc[table["is_planned_batch"], "global_batch_size"].unique():
        figure.add_trace(
            go.Scatter(
                x=[batch, batch],
                y=[table["samples"].min(), table["samples"].max()],
                mode="lines",
                line={"color": GREEN, "width": 8},
                opacity=0.3,
                name="recommended batch",
                hoverinfo="skip",
            )
        )
    batches = count_axis(table["global_batch_size"], "global batch size (samples)")
    samples = quantity_axis(table["samples"], "training samples to target")
    return figure.update_xaxes(batches).update_yaxes(samples)


def _draw_rule(figure: go.Figure, rows: pd.DataFrame, name: str, index: int) -> None:
    reached = rows[~rows["is_lower_bound"]]
    medians = reached.groupby("global_batch_size")["samples"].median()
    colour, dash, symbol = (
        each[index % len(each)] for each in (PALETTE, DASHES, SYMBOLS)
    )
    points: dict[str, Any] = {"name": plain(name), "legendgroup": name}
    figure.add_trace(
        go.Scatter(
            x=medians.index,
            y=medians,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hoverinfo="skip",
            **points,
        )
    )
    figure.add_trace(
        go.Scatter(
            x=reached["global_batch_size"],
            y=reached["samples"],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8},
            showlegend=False,
            customdata=reached["seed"].astype(str),
            hovertemplate="batch %{x}, seed %{customdata}: %{y:.3s} samples",
            **points,
        )
    )


def _lower_bounds(rows: pd.DataFrame) -> go.Scatter:
    bounds = rows.groupby(["global_batch_size", "samples"]).size().reset_index(name="n")
    return go.Scatter(
        x=bounds["global_batch_size"],
        y=bounds["samples"],
        mode="markers+text",
        marker={"symbol": "triangle-up-open", "size": 13, "color": PALETTE[3]},
        text=[f"{counted(count, 'run')} not there" for count in bounds["n"]],
        textposition="bottom left",
        name="not reached: more than this",
        hovertemplate="batch %{x}: not reached within %{y:.3s} samples<extra></extra>",
    )


def samples_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`samples_table` shows."""
    reached = table[~table["is_lower_bound"]]
    missed = int(table["is_lower_bound"].sum())
    tail = (
        f" {counted(missed, 'run')} did not reach the target within the samples "
        "allowed: the true number is above the triangle."
        if missed
        else ""
    )
    if reached.empty:
        return "No run reached the target." + tail
    medians = reached.groupby("global_batch_size")["samples"].median()
    least = medians.sort_values().reset_index().iloc[0]
    return (
        "Fewest samples were needed at global batch "
        f"{number(least['global_batch_size'])}: {number(least['samples'])}." + tail
    )

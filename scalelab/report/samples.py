"""Training to a target: samples by global batch size, and the metric over time."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    duration_range,
    number,
)
from scalelab.inputs.target import MetricMode, Target
from scalelab.laws.convergence.metric_curves import ATTEMPT, metric_curves
from scalelab.laws.convergence.rows import at_best_rates
from scalelab.recommend.answer.note_words import setting_in_words
from scalelab.records.columns import OPTION_PREFIX, TARGET_COLUMNS
from scalelab.report.style import (
    DASHES,
    GREEN,
    PALETTE,
    SYMBOLS,
    base_figure,
    count_axis,
    duration_axis,
    plain,
    quantity_axis,
)
from scalelab.report.subject import ALLOCATION, Labels, ReportSubject, has_settings

_TARGET = [*TARGET_COLUMNS]
_COLUMNS = [
    "target",
    "rate",
    "global_batch_size",
    "seed",
    "samples",
    "is_lower_bound",
    "is_planned_batch",
]
_STATED = (*ALLOCATION, "global_batch_size", "lr_rule", "parallelism", "target_value")
_MAX_POINTS = 200  # of a run, nearly; its last one is among them
_OF_METRIC = [
    *ALLOCATION,
    "global_batch_size",
    *ATTEMPT,
    "time_s",
    *_TARGET,
    "value",
    "is_chosen",
]


def _tried(subject: ReportSubject) -> pd.DataFrame:
    """Return the attempts that trained to a target, with their ``samples``.

    Those are the samples to the target, else all that were trained: a lower bound.
    """
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
    rows = at_best_rates(rows)
    rows["lr_rule"] = rows["lr_rule"].fillna("none")
    rows["rate"] = _rate_labels(rows)
    return rows.dropna(subset=[*_TARGET, "global_batch_size"])


def _rate_labels(rows: pd.DataFrame) -> pd.Series:
    """Return how the rate was set in words: its rule, and else what was varied."""
    labels = rows["lr_rule"] + " LR rule"
    by_batch = rows.groupby(["global_batch_size", "lr_rule"], dropna=False)
    for name in ("base_learning_rate", "warmup"):
        if (by_batch[name].nunique(dropna=False) > 1).any():
            labels += f", {setting_in_words(name)} " + rows[name].astype(str)
    return labels


def samples_table(subject: ReportSubject) -> pd.DataFrame:
    """Return training samples to the target that most trials had."""
    rows = _tried(subject)
    if rows.empty:
        return pd.DataFrame(columns=_COLUMNS)

    metric, mode, value = rows[_TARGET].value_counts().index[0]
    is_same = (rows[_TARGET] == [metric, mode, value]).all(axis=1)
    target = Target(metric=metric, mode=MetricMode(mode), value=float(value))
    chosen = {row.batch.global_batch_size for row in subject.plan if row.is_chosen}
    rows = rows[is_same].assign(target=str(target))
    rows["is_planned_batch"] = rows["global_batch_size"].isin(chosen)
    rows = rows[_COLUMNS].astype({"samples": float, "global_batch_size": float})
    order = ["rate", "global_batch_size", "seed"]
    return rows.sort_values(order, ignore_index=True)


def samples_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`samples_table`; lower bounds are triangles."""
    seeds = counted(table["seed"].nunique(), "seed")
    facts = (labels.curve, seeds, "lines: medians of runs that reached it")

    figure = base_figure(f"Samples to {table['target'].iloc[0]}", facts, labels)
    for index, (rate, rows) in enumerate(table.groupby("rate")):
        _draw_rule(figure, rows, str(rate), index)

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


def _look(index: int) -> list[str]:
    """Return the colour, the dash and the symbol of one of several series.

    A colour that comes again has another dash and symbol.
    """
    again = index + index // len(PALETTE)
    return [
        PALETTE[index % len(PALETTE)],
        DASHES[again % len(DASHES)],
        SYMBOLS[again % len(SYMBOLS)],
    ]


def _draw_rule(figure: go.Figure, rows: pd.DataFrame, name: str, index: int) -> None:
    reached = rows[~rows["is_lower_bound"]]
    medians = reached.groupby("global_batch_size")["samples"].median()
    colour, dash, symbol = _look(index)
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
        text=bounds["n"],
        textposition="bottom center",
        name="so many runs did not reach it: more than this",
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


def metric_table(subject: ReportSubject) -> pd.DataFrame:
    """Return the target's metric over the time of training, on each allocation.

    The metric is that of the runs that trained with the batch and the settings of a row
    of the answer, on whatever allocation; where no run has a setting, those with other
    values of it stand in. Their samples are divided by the rate of the row, which says
    when as many are trained there. Rows of a table have a point for each target that
    was reached.
    """
    tried = _tried(subject)
    if tried.empty or not subject.plan:  # streams are read only where they are shown
        return pd.DataFrame(columns=_OF_METRIC)

    metric = tried["target_metric"].mode().iloc[0]
    tried = tried[tried["target_metric"] == metric]
    curves = metric_curves(subject.streams(), metric)
    stated = tried[
        ~tried["is_lower_bound"] & ~tried["trial_id"].isin(curves["trial_id"])
    ]
    alike = [n for n in stated if n in _STATED or str(n).startswith(OPTION_PREFIX)]
    stated = stated.assign(
        value=stated["target_value"],
        trial_id=stated.groupby(alike, dropna=False).cumcount().astype(str),
    )
    points = pd.concat(
        [tried.drop(columns="samples").merge(curves, on=ATTEMPT), stated]
    )

    parts: list[pd.DataFrame] = []
    for row in subject.plan:
        points_of_batch = points[
            points["global_batch_size"] == row.batch.global_batch_size
        ]
        for name, value in row.settings.items():
            same = points_of_batch[has_settings(points_of_batch, {name: value}, {name})]
            points_of_batch = same if len(same) else points_of_batch

        points_of_batch = points_of_batch.assign(
            world_size=row.world_size,
            num_nodes=row.num_nodes,
            time_s=points_of_batch["samples"] / row.throughput_samples_per_s.value,
            is_chosen=row.is_chosen,
        )
        parts.append(points_of_batch[_OF_METRIC].sort_values([*ATTEMPT, "time_s"]))

    return pd.concat(parts, ignore_index=True)


def metric_figure(table: pd.DataFrame, labels: Labels) -> go.Figure:
    """Draw :func:`metric_table`: a line for each run, a colour for each allocation."""
    metric = str(table["target_metric"].iloc[0])
    figure = base_figure(
        f"{metric} over the time of training",
        (labels.curve, "runs at the batch of each, at its fitted rate"),
        labels,
    )
    for index, (_, rows) in enumerate(table.groupby("world_size")):
        name = counted(rows["world_size"].iloc[0], labels.device_word)
        colour, dash, symbol = _look(index)
        for number_of_run, (_, every) in enumerate(rows.groupby(ATTEMPT)):
            run = every.iloc[:: -max(1, len(every) // _MAX_POINTS)][::-1]
            figure.add_trace(
                go.Scatter(
                    x=run["time_s"],
                    y=run["value"],
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2},
                    marker={"color": colour, "symbol": symbol, "size": 6},
                    name=name,
                    legendgroup=name,
                    showlegend=number_of_run == 0,
                    customdata=run["time_s"].map(duration),
                    hovertemplate=f"{plain(metric)} %{{y:.3f}} after %{{customdata}}",
                )
            )

    for value in table["target_value"].unique():
        figure.add_hline(value, line={"color": GREEN, "dash": "dot", "width": 1.5})

    figure.update_xaxes(duration_axis(table["time_s"], "time of training steps"))
    return figure.update_yaxes(title_text=metric)


def metric_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say when runs reach the target in :func:`metric_table`, at one of the rows."""
    chosen = table[table["is_chosen"]]
    at = (
        chosen
        if len(chosen)
        else table[table["world_size"] == table["world_size"].max()]
    )
    metric, mode, value = at[_TARGET].iloc[-1]
    target = Target(metric=metric, mode=MetricMode(mode), value=float(value))
    reached = at[at["value"].map(target.is_reached_by)]
    times_s = reached.groupby(ATTEMPT)["time_s"].min()
    runs = counted(at.groupby(ATTEMPT).ngroups, "run")

    where = f"At the rate of {counted(at['world_size'].iloc[0], labels.device_word)}"
    if reached.empty:
        return f"{where} {target} is reached by none of {runs}."

    ends = Interval(value=times_s.median(), lo=times_s.min(), hi=times_s.max())
    others = f" ({duration_range(ends)})" if len(times_s) > 1 else ""
    return (
        f"{where} {target} is reached after {duration(ends.value)}{others} of training "
        f"steps, by {len(times_s)} of {runs}. Start-up and evaluations are not in that."
    )

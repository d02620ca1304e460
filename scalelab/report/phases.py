"""Phases of an optimiser step by device count."""

import math

import pandas as pd
import plotly.graph_objects as go

from scalelab.inputs.numerals import duration, percent
from scalelab.report.style import BLUE, GOLD, GREEN, GREY, ORANGE, PATTERNS, base_figure
from scalelab.report.subject import ALLOCATION, Labels, ReportSubject

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

"""Throughput, speedup and scaling efficiency by device count: the numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import counted, number, percent
from scalelab.recommend.answer.recommendation import OutlookRow
from scalelab.report.labels import ALLOCATION, Labels
from scalelab.report.subject import ReportSubject

_POINT = (
    *ALLOCATION,
    "local_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
)


def measured_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Reduce repeats to one point per allocation and batch arithmetic."""
    columns = [*_POINT, "num_repeats", "throughput_samples_per_s", "lo", "hi"]
    points = [
        (*key, len(group), *_middle_and_ends(group))
        for key, group in rows.groupby(list(_POINT))
    ]
    return pd.DataFrame(points, columns=columns)


def _middle_and_ends(group: pd.DataFrame) -> tuple[float, float, float]:
    throughput = group["throughput_samples_per_s"]
    if len(group) > 1:
        return throughput.median(), throughput.min(), throughput.max()
    only = group.iloc[0]
    ends = only["global_batch_size"] / only[["step_time_hi_s", "step_time_lo_s"]]
    return throughput.iloc[0], ends.iloc[0], ends.iloc[1]


def throughput_table(subject: ReportSubject) -> pd.DataFrame:
    """Return throughput by count: the law, what was measured, the ideal."""
    measured = measured_points(subject.planned).assign(series="measured")
    others = _extremes(measured_points(subject.rows[~subject.rows["is_planned"]]))
    parts = [
        _law_rows(subject.plan),
        _with_job_time(measured, subject.plan),
        others.assign(series="other configuration"),
    ]
    table = _stacked(parts)
    table = _stacked([table, _ideal_rows(table, subject)])
    return table.assign(is_chosen=table["is_chosen"].eq(True))


def _extremes(points: pd.DataFrame) -> pd.DataFrame:
    ranked = points.sort_values("throughput_samples_per_s").groupby("world_size")
    return pd.concat([ranked.head(1), ranked.tail(1)]).drop_duplicates(list(_POINT))


def _stacked(parts: list[pd.DataFrame]) -> pd.DataFrame:
    # pandas warns when an empty part decides on a dtype
    found = [part for part in parts if len(part)] or [pd.DataFrame()]
    table = pd.concat(found, ignore_index=True)
    return table.reindex(columns=_THROUGHPUT_COLUMNS)


_THROUGHPUT_COLUMNS = [
    "series",
    *ALLOCATION,
    "global_batch_size",
    "throughput_samples_per_s",
    "lo",
    "hi",
    "num_repeats",
    "basis",
    "is_chosen",
    "job_time_s",
    "job_time_lo_s",
    "job_time_hi_s",
]


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


def _with_job_time(
    measured: pd.DataFrame, plan: tuple[OutlookRow, ...]
) -> pd.DataFrame:
    samples = {row.batch.global_batch_size: row.samples.value for row in plan}
    job = measured["global_batch_size"].map(samples) if plan else 1.0
    return measured.assign(
        job_time_s=job / measured["throughput_samples_per_s"],
        job_time_lo_s=job / measured["hi"],
        job_time_hi_s=job / measured["lo"],
    )


def _ideal_rows(table: pd.DataFrame, subject: ReportSubject) -> pd.DataFrame:
    start = _baseline_point(table, subject)
    if start is None:
        return pd.DataFrame()
    counts = np.sort(table["world_size"].unique())
    ideal = start["throughput_samples_per_s"] / start["world_size"] * counts
    return pd.DataFrame(
        {
            "series": "ideal",
            "world_size": counts,
            "throughput_samples_per_s": ideal,
            "job_time_s": start["job_time_s"] * start["world_size"] / counts,
        }
    )


def _baseline_point(table: pd.DataFrame, subject: ReportSubject) -> pd.Series | None:
    """Return the row of the table that speedups refer to."""
    if row := subject.baseline:
        return pd.Series(
            {
                "world_size": row.world_size,
                "throughput_samples_per_s": row.throughput_samples_per_s.value,
                "job_time_s": row.time_s.value,
            }
        )
    measured = table[table["series"] == "measured"]
    if measured.empty:
        return None
    return measured.sort_values(["world_size", "num_nodes"]).iloc[0]


def speedup_table(subject: ReportSubject) -> pd.DataFrame:
    """Return how many times faster the job is than at the baseline."""
    table = throughput_table(subject)
    start = _baseline_point(table, subject)
    table = table[table["job_time_s"].lt(math.inf)]
    if start is None:
        return table.reindex(columns=_SPEEDUP_COLUMNS)
    times = {"speedup": "job_time_s", "lo": "job_time_hi_s", "hi": "job_time_lo_s"}
    speedups = {name: start["job_time_s"] / table[time] for name, time in times.items()}
    table = table.assign(**speedups, baseline_world_size=start["world_size"])
    return table.reindex(columns=_SPEEDUP_COLUMNS).reset_index(drop=True)


_SPEEDUP_COLUMNS = [
    "series",
    *ALLOCATION,
    "speedup",
    "lo",
    "hi",
    "baseline_world_size",
    "num_repeats",
    "basis",
    "is_chosen",
]


def efficiency_table(subject: ReportSubject) -> pd.DataFrame:
    """Return the speedup as a share of the ideal one."""
    table = speedup_table(subject)
    is_ideal = table["series"].eq("ideal")
    ideal = table["world_size"] / table["baseline_world_size"]
    same_batch = table["world_size"].map(_same_batch_factors(subject))
    scale = (same_batch if subject.plan else 1.0) / ideal
    scale = scale.where(~is_ideal, 1 / ideal)
    shares = {name: table[name] * scale for name in ("speedup", "lo", "hi")}
    table = table.assign(**shares).rename(columns={"speedup": "scaling_efficiency"})
    for row in subject.plan:
        if share := row.scaling_efficiency:
            law = table["series"].eq("law") & table["world_size"].eq(row.world_size)
            table.loc[law, ["lo", "hi"]] = share.lo, share.hi
    return table.dropna(subset="scaling_efficiency").reset_index(drop=True)


def _same_batch_factors(subject: ReportSubject) -> dict[int, float]:
    """Return by device count how an efficiency changes from job to equal batch."""
    start = subject.baseline
    if start is None:
        return {}
    return {
        row.world_size: row.scaling_efficiency.value
        * (row.gpu_hours.value / start.gpu_hours.value)
        for row in subject.plan
        if row.scaling_efficiency is not None
    }


def throughput_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`throughput_table` shows."""
    at = _telling_row(table)
    rate = number(at["throughput_samples_per_s"])
    count = counted(at["world_size"], labels.device_word)
    missing = "" if (table["series"] == "law").any() else " No law could be drawn."
    return (
        f"{count}: {rate} samples per second. The dotted line is what would be reached "
        f"if every {labels.device_word} added as much as those of the baseline."
        f"{missing}"
    )


def speedup_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`speedup_table` shows."""
    at = _telling_row(table)
    if at["world_size"] == at["baseline_world_size"]:
        return f"{_count(at, labels)} is the baseline of every speedup here."
    ideal = number(at["world_size"] / at["baseline_world_size"])
    return (
        f"With {_count(at, labels)} the job runs "
        f"{number(at['speedup'])} times as fast as on the baseline; {ideal} times "
        "would be ideal."
    )


def efficiency_sentence(table: pd.DataFrame, labels: Labels) -> str:
    """Say what :func:`efficiency_table` shows."""
    at = _telling_row(table)
    if at["world_size"] == at["baseline_world_size"]:
        return f"{_count(at, labels)} is the baseline, so its efficiency is 100%."
    share = percent(at["scaling_efficiency"])
    if at["scaling_efficiency"] > 1:
        return (
            f"With {_count(at, labels)} each does {share} of what one does at the "
            "baseline. More than 100% comes from another batch than the baseline's, "
            "from data that fits into caches, or from a slow baseline."
        )
    return (
        f"With {_count(at, labels)}, {share} of what they could do at the baseline's "
        "efficiency is used; the rest goes into exchanging gradients, waiting for "
        "slower ranks and fixed costs."
    )


def _count(row: pd.Series, labels: Labels) -> str:
    return counted(row["world_size"], labels.device_word)


def _telling_row(table: pd.DataFrame) -> pd.Series:
    """Return the recommended row; without one, the row of the largest count."""
    rows = table[table["series"].isin(["law", "measured"])]
    chosen = rows[rows["is_chosen"]]
    return (chosen if len(chosen) else rows.sort_values("world_size")).iloc[-1]

"""The curve that a report shows, and the recommended batch sizes along it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from scalelab.inputs.document import Scalar
from scalelab.laws.rows import CurveKey, FitRows, Observed, prepared, split_curves
from scalelab.recommend.answer.recommendation import OutlookRow, Recommendation
from scalelab.records.columns import OPTION_PREFIX
from scalelab.report.labels import (
    ALLOCATION,
    BATCH,
    Labels,
    label,
    samples_per_device,
)

_EXTRA_COLUMNS = (
    "step_time_lo_s",
    "step_time_hi_s",
    "data_wait_s",
    "compute_s",
    "exposed_sync_s",
    "optimizer_s",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSubject:
    """The curve a report shows.

    Parameters
    ----------
    rows : DataFrame
        Usable observations of the curve: the columns of ``laws.rows.FitRows.frame``,
        the interval and the phases of the step, ``throughput_samples_per_s``, and
        ``is_planned``: the batch arithmetic is that of the plan at this allocation.
    plan
        The recommendation's rows by world size, as far as device counts can be
        compared; empty without a recommendation.
    curves
        Usable observations by curve; only one of the curves is shown.
    """

    labels: Labels
    rows: pd.DataFrame
    plan: tuple[OutlookRow, ...]
    fit_rows: FitRows
    curves: Mapping[CurveKey, pd.DataFrame]

    @classmethod
    def of(
        cls, observations: Observed, recommendation: Recommendation | None = None
    ) -> ReportSubject:
        """Choose the recommended curve, else the one measured at most counts."""
        fit_rows = prepared(observations)
        usable = _usable_rows(fit_rows)
        curves = split_curves(usable)
        if recommendation is None:
            rows = _planned_by_coverage(_widest(curves, usable))
        else:
            rows = _planned_by(recommendation, usable)
        return cls(
            labels=label(fit_rows.observations, rows, recommendation),
            rows=rows,
            plan=() if recommendation is None else _compared(recommendation),
            fit_rows=fit_rows,
            curves=curves,
        )

    @property
    def observations(self) -> pd.DataFrame:
        """Everything that was observed, see ``records.columns``."""
        return self.fit_rows.observations

    @property
    def num_curves(self) -> int:
        """Number of curves among the usable observations."""
        return len(self.curves)

    @property
    def baseline(self) -> OutlookRow | None:
        """The plan's row that efficiencies refer to."""
        return next((row for row in self.plan if row.is_baseline), None)

    @property
    def planned(self) -> pd.DataFrame:
        """Observations of the plan's own batch arithmetic."""
        return self.rows[self.rows["is_planned"]]


def _compared(recommendation: Recommendation) -> tuple[OutlookRow, ...]:
    """Return the rows that can be compared: one, where one count was measured."""
    if recommendation.knee is None:
        return (recommendation.chosen,)
    return recommendation.rows


def _usable_rows(fit_rows: FitRows) -> pd.DataFrame:
    """Return the observations whose step time may be used, and their phases."""
    extra = fit_rows.observations.reindex(columns=list(_EXTRA_COLUMNS))
    rows = fit_rows.frame.join(extra.astype("Float64").astype(float))
    rows["throughput_samples_per_s"] = rows["global_batch_size"] / rows["step_time_s"]
    return rows


def _widest(
    curves: Mapping[CurveKey, pd.DataFrame], usable: pd.DataFrame
) -> pd.DataFrame:
    candidates = list(curves.values()) or [usable]
    return max(candidates, key=lambda rows: (rows["world_size"].nunique(), len(rows)))


def _planned_by_coverage(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark the batch, global or per device, that was measured at most counts."""
    per_device = samples_per_device(rows)
    best = pd.Series(False, index=rows.index)
    best_counts = 0
    for held_fixed in (rows["global_batch_size"], per_device):
        counts = rows["world_size"].groupby(held_fixed).nunique()
        if len(counts) and counts.max() > best_counts:
            best, best_counts = held_fixed == counts.idxmax(), int(counts.max())
    return _fastest_arithmetic(rows.assign(is_planned=best))


def _fastest_arithmetic(rows: pd.DataFrame) -> pd.DataFrame:
    planned = rows[rows["is_planned"]]
    keys = [*ALLOCATION, *BATCH]
    medians = planned.groupby(keys)["throughput_samples_per_s"].median().reset_index()
    fastest = medians.sort_values("throughput_samples_per_s", ascending=False)
    fastest = fastest.drop_duplicates(list(ALLOCATION))
    kept = set(fastest[keys].itertuples(index=False, name=None))
    arithmetic = rows[keys].itertuples(index=False, name=None)
    is_fastest = pd.Series([key in kept for key in arithmetic], rows.index, dtype=bool)
    return rows.assign(is_planned=rows["is_planned"] & is_fastest)


def _planned_by(recommendation: Recommendation, rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[
        _equals_if_known(rows, "workload", recommendation.workload)
        & _equals_if_known(rows, "device_name", recommendation.device_name)
        & _equals_if_known(rows, "node_group", recommendation.node_group)
    ]
    swept = list(
        dict.fromkeys(name for row in recommendation.rows for name in row.settings)
    )
    planned = pd.Series(False, index=rows.index)
    for row in recommendation.rows:
        is_of_curve = _has_settings(rows, row.settings, swept)
        planned |= is_of_curve & _is_configured_as(rows, row)
    shown = planned | _has_settings(rows, recommendation.chosen.settings, swept)
    return rows.assign(is_planned=planned)[shown]


def _equals_if_known(rows: pd.DataFrame, name: str, value: str) -> pd.Series:
    # tables of others may lack the column or its values; the answer then says "unknown"
    equal = (
        (rows[name] == value).fillna(False).astype(bool)
        if name in rows
        else pd.Series(False, index=rows.index)
    )
    return equal if equal.any() else pd.Series(True, index=rows.index)


def _has_settings(
    rows: pd.DataFrame, settings: Mapping[str, Scalar], swept: list[str]
) -> pd.Series:
    """Mark the rows with these settings; no row if there are no settings."""
    matches = pd.Series(True, index=rows.index)
    for name in swept:
        values = rows[name if name in rows else OPTION_PREFIX + name]
        same = values == settings[name] if name in settings else values.isna()
        matches &= same.fillna(False).astype(bool)
    return matches


def _is_configured_as(rows: pd.DataFrame, row: OutlookRow) -> pd.Series:
    return (
        (rows["world_size"] == row.world_size)
        & (rows["num_nodes"] == row.num_nodes)
        & (rows["local_batch_size"] == row.batch.local_batch_size)
        & (rows["gradient_accumulation_steps"] == row.batch.gradient_accumulation_steps)
        & (rows["data_parallel_size"] == row.batch.data_parallel_size)
    )

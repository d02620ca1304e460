"""The curve that a report shows, the recommended batches along it, and their labels."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

import pandas as pd

from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted, device_words, number, percent
from scalelab.laws.convergence.rows import RATE_SETTINGS
from scalelab.laws.rows import CurveKey, Observed, prepared
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.records.columns import OPTION_PREFIX

ALLOCATION = ("world_size", "num_nodes")
BATCH = (
    "local_batch_size",
    "gradient_accumulation_steps",
    "data_parallel_size",
)
_EXTRA_COLUMNS = (
    "step_time_lo_s",
    "step_time_hi_s",
    "data_wait_s",
    "compute_s",
    "exposed_sync_s",
    "optimizer_s",
    "samples_per_step",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Words that go with the numbers of a report."""

    curve: str
    device_word: str
    device_hour_word: str
    mode: str
    baseline: str
    repeats: str
    # What the bands are, e.g. ``80% interval``; empty where there are none.
    interval: str
    is_emulated: bool

    @property
    def devices(self) -> str:
        """The device word in the plural."""
        return f"{self.device_word}s"

    @property
    def hours(self) -> str:
        """The device-hour word without what the figure's badge says already."""
        return self.device_hour_word.removeprefix("emulated ")

    @property
    def scaling_facts(self) -> tuple[str, ...]:
        """The facts that every scaling plot must state."""
        baseline = f"baseline: {self.baseline}" if self.baseline else ""
        return (self.curve, self.mode, baseline, self.repeats, self.bands)

    @property
    def bands(self) -> str:
        """The meaning of the bands, for captions."""
        return f"bands: {self.interval}" if self.interval else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSubject:
    """The curve a report shows."""

    labels: Labels
    # Everything that was observed, see ``records.columns``.
    observations: pd.DataFrame
    # Usable observations of the curve: the columns of ``laws.rows.FitRows.frame``, the
    # interval and the phases of the step, ``throughput_samples_per_s``, and
    # ``is_planned``: the batch arithmetic is that of the plan at this allocation.
    rows: pd.DataFrame
    # The recommendation's rows by world size, as far as device counts can be compared;
    # empty without a recommendation
    plan: tuple[OutlookRow, ...]
    recommendation: Recommendation | None
    # Usable observations by curve; only one of the curves is shown
    curves: Mapping[CurveKey, pd.DataFrame]
    # Reads what the attempts reported while they ran, see ``records.streams``
    streams: Callable[[], pd.DataFrame]

    @classmethod
    def of(
        cls,
        observed: Observed,
        recommendation: Recommendation | None = None,
        streams: Callable[[], pd.DataFrame] = pd.DataFrame,
    ) -> Self:
        """Choose the recommended curve, else the one measured at most counts."""
        fit_rows = prepared(observed)
        observations = fit_rows.observations
        extra = observations.reindex(columns=list(_EXTRA_COLUMNS))
        usable = fit_rows.frame.join(extra.astype("Float64").astype(float))
        usable["throughput_samples_per_s"] = (
            usable["global_batch_size"] / usable["step_time_s"]
        )
        curves = {key: usable.loc[part.index] for key, part in fit_rows.curves.items()}

        plan: tuple[OutlookRow, ...] = ()
        if recommendation is None:
            name, rows = "", usable
            if curves:
                key = max(
                    curves,
                    key=lambda k: (curves[k]["world_size"].nunique(), len(curves[k])),
                )
                name, rows = _curve_name(dict(key)), curves[key]

            rows = _planned_by_coverage(rows)
            labels = _labels_of_measured(observations, rows, name)
        else:
            rows = _planned_by(recommendation, usable)
            labels = _labels_of_answer(recommendation, rows)
            # where one device count alone was measured, only that can be compared
            compares = recommendation.knee is not None
            plan = recommendation.alike if compares else (recommendation.chosen,)

        return cls(
            labels=labels,
            observations=observations,
            rows=rows,
            plan=plan,
            recommendation=recommendation,
            curves=curves,
            streams=streams,
        )

    @property
    def baseline(self) -> OutlookRow | None:
        """The plan's row that efficiencies refer to."""
        return next((row for row in self.plan if row.is_baseline), None)

    @property
    def planned(self) -> pd.DataFrame:
        """Observations of the plan's own batch arithmetic."""
        return self.rows[self.rows["is_planned"]]


def _planned_by_coverage(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark the fastest arithmetic of the batch that was measured at most counts."""
    best, best_counts = pd.Series(False, index=rows.index), 0
    for held_fixed in (rows["global_batch_size"], _samples_per_device(rows)):
        counts = rows["world_size"].groupby(held_fixed).nunique()
        if len(counts) and counts.max() > best_counts:
            best, best_counts = held_fixed == counts.idxmax(), int(counts.max())

    keys = [*ALLOCATION, *BATCH]
    throughput = rows[best].groupby(keys)["throughput_samples_per_s"].median()
    fastest = throughput.sort_values(ascending=False).reset_index()
    kept = pd.MultiIndex.from_frame(fastest.drop_duplicates(list(ALLOCATION))[keys])
    is_fastest = pd.MultiIndex.from_frame(rows[keys]).isin(kept)
    return rows.assign(is_planned=best & is_fastest)


def _planned_by(recommendation: Recommendation, rows: pd.DataFrame) -> pd.DataFrame:
    is_same = pd.Series(True, index=rows.index)
    for column in ("workload", "device_name", "node_group"):
        # tables of others may lack the column or its values; the answer then says
        # "unknown"
        if column in rows:
            equal = (rows[column] == getattr(recommendation, column)).fillna(False)
            is_same &= equal.astype(bool) | (not equal.any())

    rows = rows[is_same]
    # step times do not depend on the rate
    named = {name for row in recommendation.alike for name in row.settings}
    swept = named - {*RATE_SETTINGS}

    planned = pd.Series(False, index=rows.index)
    for row in recommendation.alike:
        place = [row.world_size, row.num_nodes]
        place += [getattr(row.batch, name) for name in BATCH]
        is_there = (rows[[*ALLOCATION, *BATCH]] == place).all(axis=1)
        planned |= is_there & has_settings(rows, row.settings, swept)

    shown = planned | has_settings(rows, recommendation.chosen.settings, swept)
    return rows.assign(is_planned=planned)[shown]


def has_settings(
    rows: pd.DataFrame, settings: Mapping[str, Scalar], swept: set[str]
) -> pd.Series:
    """Mark the rows with these settings, and with no other of those that were swept."""
    matches = pd.Series(True, index=rows.index)
    for name in swept:
        values = rows[name if name in rows else OPTION_PREFIX + name]
        same = values == settings[name] if name in settings else values.isna()
        matches &= same.fillna(False).astype(bool)
    return matches


def _samples_per_device(batches: pd.DataFrame) -> pd.Series:
    # devices of one replica share its samples
    per_rank = batches["local_batch_size"] * batches["gradient_accumulation_steps"]
    return per_rank * (batches["data_parallel_size"] / batches["world_size"])


def scaling_mode(batches: pd.DataFrame, device_word: str) -> str:
    """Say what is held fixed along a curve."""
    if batches.empty:
        return ""
    totals = batches["global_batch_size"].unique()
    if batches["world_size"].nunique() == 1:
        return f"one count only: {counted(batches['world_size'].iloc[0], device_word)}"
    if len(totals) == 1:
        return f"strong scaling: global batch {number(totals[0])} at every count"

    shares = _samples_per_device(batches).unique()
    if len(shares) == 1:
        share = f"{number(shares[0])} samples per {device_word} and step"
        return f"weak scaling: {share} at every count"

    return "neither strong nor weak scaling: the best batch at each count"


def _labels_of_measured(
    observations: pd.DataFrame, rows: pd.DataFrame, curve: str
) -> Labels:
    types, planned = observations["device_type"].dropna(), rows[rows["is_planned"]]
    words = device_words(
        types.iloc[0] if len(types) else None, is_emulated=_any_emulated(observations)
    )

    baseline = ""
    if len(planned):
        baseline = f"{counted(planned['world_size'].min(), words.device)}, as measured"

    return Labels(
        curve=curve,
        device_word=words.device,
        device_hour_word=words.hour,
        mode=scaling_mode(planned, words.device),
        baseline=baseline,
        repeats=_repeats(planned),
        interval="",
        is_emulated=_any_emulated(rows),
    )


def _labels_of_answer(recommendation: Recommendation, rows: pd.DataFrame) -> Labels:
    word, baseline = recommendation.device_word, recommendation.baseline
    batches = pd.DataFrame(
        {"world_size": row.world_size, **asdict(row.batch)}
        for row in recommendation.alike
    )
    named = {
        "workload": recommendation.workload,
        "device_name": recommendation.device_name,
        **{
            OPTION_PREFIX + name: value
            for name, value in recommendation.chosen.settings.items()
            if name not in RATE_SETTINGS
        },
    }

    return Labels(
        curve=_curve_name(named),
        device_word=word,
        device_hour_word=recommendation.device_hour_word,
        mode=scaling_mode(batches, word),
        baseline=baseline,
        repeats=_repeats(rows[rows["is_planned"]]),
        interval=f"{percent(recommendation.interval)} interval",
        is_emulated=recommendation.is_emulated or _any_emulated(rows),
    )


def _any_emulated(rows: pd.DataFrame) -> bool:
    return "emulated" in rows and bool(rows["emulated"].fillna(False).any())


def _repeats(planned: pd.DataFrame) -> str:
    sizes = planned.groupby([*ALLOCATION, *BATCH]).size()
    if sizes.empty:
        return ""
    fewest, most = int(sizes.min()), int(sizes.max())
    return counted(most, "repeat") if fewest == most else f"{fewest} to {most} repeats"


def _curve_name(named: Mapping[str, Scalar]) -> str:
    workload, device_name = named.get("workload"), named.get("device_name")
    subject = f"{workload or 'all rows'} on {device_name}" if device_name else workload
    settings = [
        f"{name.removeprefix(OPTION_PREFIX)} {value}"
        for name, value in named.items()
        if name == "precision" or name.startswith(OPTION_PREFIX)
    ]
    return ", ".join([str(subject or "all rows"), *settings])

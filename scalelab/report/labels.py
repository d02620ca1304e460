"""Labels of figures: words that every figure of a report carries."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from scalelab.inputs.device_words import DeviceWords, device_words
from scalelab.inputs.numerals import counted, number, percent
from scalelab.laws.rows import split_curves
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.columns import OPTION_PREFIX

ALLOCATION = ("world_size", "num_nodes")
BATCH = (
    "local_batch_size",
    "gradient_accumulation_steps",
    "data_parallel_size",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Words that go with the numbers of a report.

    Parameters
    ----------
    interval
        What the bands are, e.g. ``80% interval``; empty where there are none.
    """

    curve: str
    device_word: str
    device_hour_word: str
    mode: str
    baseline: str
    repeats: str
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


def scaling_mode(batches: pd.DataFrame, device_word: str) -> str:
    """Say what is held fixed along a curve."""
    if batches.empty:
        return ""
    totals = batches["global_batch_size"].unique()
    if batches["world_size"].nunique() == 1:
        return f"one count only: {counted(batches['world_size'].iloc[0], device_word)}"
    if len(totals) == 1:
        return f"strong scaling: global batch {number(totals[0])} at every count"
    shares = samples_per_device(batches)
    if shares.nunique() == 1:
        share = f"{number(shares.iloc[0])} samples per {device_word} and step"
        return f"weak scaling: {share} at every count"
    return "neither strong nor weak scaling: the best batch at each count"


def samples_per_device(batches: pd.DataFrame) -> pd.Series:
    """Return the samples per device and step; devices of one replica share them."""
    per_rank = batches["local_batch_size"] * batches["gradient_accumulation_steps"]
    return per_rank * (batches["data_parallel_size"] / batches["world_size"])


def label(
    observations: pd.DataFrame,
    rows: pd.DataFrame,
    recommendation: Recommendation | None,
) -> Labels:
    """Return the labels for a curve."""
    words = _device_words(observations)
    planned = rows[rows["is_planned"]]
    if recommendation is None:
        return Labels(
            curve=_curve_name(rows),
            device_word=words.device,
            device_hour_word=words.hour,
            mode=scaling_mode(planned, words.device),
            baseline=_smallest_measured(planned, words.device),
            repeats=_repeats(planned),
            interval="",
            is_emulated=_any(rows, "emulated"),
        )
    return Labels(
        curve=_answered_name(recommendation),
        device_word=recommendation.device_word,
        device_hour_word=recommendation.device_hour_word,
        mode=scaling_mode(_plan_batches(recommendation), recommendation.device_word),
        baseline=_baseline(recommendation),
        repeats=_repeats(planned),
        interval=f"{percent(recommendation.interval)} interval",
        is_emulated=recommendation.is_emulated or _any(rows, "emulated"),
    )


def _any(rows: pd.DataFrame, name: str) -> bool:
    return name in rows and bool(rows[name].fillna(False).any())


def _device_words(observations: pd.DataFrame) -> DeviceWords:
    types = observations["device_type"].dropna()
    return device_words(
        types.iloc[0] if len(types) else None,
        is_emulated=_any(observations, "emulated"),
    )


def _smallest_measured(planned: pd.DataFrame, device_word: str) -> str:
    if planned.empty:
        return ""
    return f"{counted(planned['world_size'].min(), device_word)}, as measured"


def _baseline(recommendation: Recommendation) -> str:
    named = recommendation.baseline
    for row in recommendation.rows:
        size = counted(row.world_size, recommendation.device_word)
        if row.is_baseline and size not in named:
            return f"{named} ({size})"
    return named


def _repeats(planned: pd.DataFrame) -> str:
    sizes = planned.groupby([*ALLOCATION, *BATCH]).size()
    if sizes.empty:
        return ""
    fewest, most = int(sizes.min()), int(sizes.max())
    return counted(most, "repeat") if fewest == most else f"{fewest} to {most} repeats"


def _plan_batches(recommendation: Recommendation) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "world_size": row.world_size,
            "local_batch_size": row.batch.local_batch_size,
            "gradient_accumulation_steps": row.batch.gradient_accumulation_steps,
            "data_parallel_size": row.batch.data_parallel_size,
            "global_batch_size": row.batch.global_batch_size,
        }
        for row in recommendation.rows
    )


def _answered_name(recommendation: Recommendation) -> str:
    settings = [
        f"{name.removeprefix(OPTION_PREFIX)} {value}"
        for name, value in recommendation.chosen.settings.items()
    ]
    return _name(recommendation.workload, recommendation.device_name, settings)


def _curve_name(rows: pd.DataFrame) -> str:
    keys = list(split_curves(rows))
    if not keys:
        return ""
    key = dict(keys[0])
    settings = [
        f"{name.removeprefix(OPTION_PREFIX)} {value}"
        for name, value in key.items()
        if name == "precision" or name.startswith(OPTION_PREFIX)
    ]
    return _name(key.get("workload", ""), key.get("device_name", ""), settings)


def _name(workload: object, device_name: object, settings: list[str]) -> str:
    subject = f"{workload or 'all rows'} on {device_name}" if device_name else workload
    return ", ".join([str(subject or "all rows"), *settings])

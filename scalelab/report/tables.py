"""Plain tables of text, as the page shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import change, device_time, duration, number, percent

_MAX_ROWS = 200
_TITLES = {
    "series": "what",
    "allocation": "nodes x devices",
    "world_size": "devices",
    "num_nodes": "nodes",
    "global_batch_size": "global batch",
    "throughput_samples_per_s": "samples per s",
    "scaling_efficiency": "efficiency",
    "baseline_world_size": "devices of the baseline",
    "num_repeats": "repeats",
    "time_s": "time",
    "gpu_hours": "device time",
    "step_time_s": "time of a step",
    "data_wait_s": "waiting for data",
    "compute_s": "forward and backward",
    "exposed_sync_s": "gradient exchange, not hidden",
    "optimizer_s": "optimizer",
    "other_s": "other",
    "is_pareto": "worth considering",
    "is_chosen": "recommended",
    "is_planned_batch": "recommended batch",
    "is_lower_bound": "target not reached",
    "lr_rule": "LR rule",
    "measured_s": "measured",
    "predicted_s": "predicted",
    "relative_error": "error",
}
_ENDS = {"lo": "hi", "time_lo_s": "time_hi_s", "gpu_hours_lo": "gpu_hours_hi"}
"""The lower ends of intervals and their upper ones; each follows its value."""
_WRITERS = {"scaling_efficiency": percent, "relative_error": change}
_UNSHOWN = ("job_time_s", "job_time_lo_s", "job_time_hi_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """A table of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_omitted: int = 0

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        device_hour_word: str = "device-h",
        max_rows: int = _MAX_ROWS,
    ) -> TextTable:
        """Write a frame as text; columns without any value are dropped."""
        known = frame.dropna(axis="columns", how="all")
        shown = known.drop(columns=list(_UNSHOWN), errors="ignore").head(max_rows)
        columns: dict[str, list[str]] = {}
        before = ""
        for name in map(str, shown.columns):
            if name in _ENDS:
                ends = shown[[name, _ENDS[name]]].itertuples(index=False, name=None)
                write = _writer(before, device_hour_word)
                title = f"{_title(before)}, from and to"
                columns[title] = [
                    f"{write(lo)} to {write(hi)}" if np.isfinite([lo, hi]).all() else ""
                    for lo, hi in ends
                ]
            elif name not in _ENDS.values():
                write = _writer(name, device_hour_word)
                columns[_title(name)] = [_cell(value, write) for value in shown[name]]
                before = name
        return cls(
            columns=tuple(columns),
            rows=tuple(zip(*columns.values(), strict=True)),
            num_omitted=len(frame) - len(shown),
        )

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[str]]) -> TextTable:
        """Return the table of these columns, each with its title first."""
        titles, *rows = zip(*columns.values(), strict=True)
        return cls(columns=titles, rows=tuple(rows))

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers; they are aligned to the right."""
        return tuple(
            all(not row[index] or row[index][0] in "+-0123456789" for row in self.rows)
            for index in range(len(self.columns))
        )


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _writer(name: str, device_hour_word: str) -> Callable[[float], str]:
    if name == "gpu_hours":
        return lambda hours: device_time(hours, device_hour_word)
    if name in _WRITERS:
        return _WRITERS[name]
    is_duration = name.endswith("_s") and not name.endswith("_per_s")
    return duration if is_duration else number


def _cell(value: Any, write: Callable[[float], str]) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value)
    if pd.isna(value):
        return ""
    return write(value) if isinstance(value, int | float) else str(value)

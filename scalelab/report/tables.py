"""Plain tables of text, as the page shows them: numbers, attempts, failures, curves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import (
    change,
    counted,
    device_time,
    duration,
    number,
    percent,
)
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import parse_json
from scalelab.laws.rows import curve_label, invalid_reasons
from scalelab.recommend.answer.evidence import WholeRun
from scalelab.recommend.answer.failures import of_any_rank
from scalelab.recommend.answer.reasons import in_words
from scalelab.records.attempt import AttemptResult
from scalelab.report.subject import ReportSubject

_MAX_ROWS = 200
_TITLES = {
    "series": "what",
    "trial_id": "trial",
    "allocation": "nodes x devices",
    "world_size": "devices",
    "num_nodes": "nodes",
    "local_batch_size": "local batch",
    "gradient_accumulation_steps": "accumulation",
    "global_batch_size": "global batch",
    "throughput_samples_per_s": "samples per s",
    "scaling_efficiency": "efficiency",
    "baseline_world_size": "devices of the baseline",
    "num_repeats": "repeats",
    "time_s": "time",
    "gpu_hours": "device time",
    "step_time_s": "time of a step",
    "data_wait_s": "waiting for data",
    "gpu_utilization": "device busy",
    "validity": "ignored because",
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
    ) -> Self:
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
    def of_columns(cls, columns: Mapping[str, Sequence[str]]) -> Self:
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


Results = Mapping[tuple[str, int], AttemptResult]
"""How attempts ended, by trial id and attempt number."""

_MEANINGS = {
    Outcome.COMPLETED: "measured what it was run for",
    Outcome.TARGET_NOT_REACHED: "trained to its limit without reaching the target",
    Outcome.PRUNED: "was ended early by the source of trials; its measurement counts",
    Outcome.OUT_OF_MEMORY: "the device's memory was too small: this batch does not fit",
    Outcome.HOST_OUT_OF_MEMORY: "the node's memory was too small",
    Outcome.STALLED: "made no progress and was ended",
    Outcome.FAILED: "the program raised an error or died",
    Outcome.TIMED_OUT: "ran longer than allowed",
    Outcome.PREEMPTED: "the batch system took the node back",
    Outcome.NODE_FAIL: "the node or the driver was lost",
    Outcome.CANCELLED: "was cancelled",
    Outcome.REFUSED: "could not be started as asked",
}
_MAX_FAILURES = 100
_MAX_CURVES = 60
_PEAK = "gpu_memory_peak_bytes"


def outcome_table(observations: pd.DataFrame) -> TextTable:
    """Return how many attempts ended in each way."""
    counts = observations["outcome"].value_counts()
    return TextTable(
        columns=("outcome", "attempts", "meaning"),
        rows=tuple(
            (_in_words(outcome), f"{counts[outcome]:,}", meaning)
            for outcome, meaning in _MEANINGS.items()
            if outcome in counts.index
        ),
    )


def failures(
    observations: pd.DataFrame, results: Results
) -> tuple[dict[str, Any], ...]:
    """Return the attempts that did not complete, those that measured nothing first.

    Attempts are together that ended alike and for the same reason, whatever the rank:
    what the first of them left, and ``others``, each with its configuration. A report
    may be far away from the run: ``files`` is the log, else the directory, as seen from
    the run's directory; empty for an imported row.
    """
    ended = observations["outcome"]
    bad = observations[ended.ne(Outcome.COMPLETED).fillna(False)]
    attempts, reasons = bad["attempt"].fillna(1).astype(int), bad["reason"].fillna("")
    bad = bad.assign(attempt=attempts, reason=reasons)
    rows = bad.to_dict("records")
    rows.sort(key=lambda row: Outcome(row["outcome"]).is_measurement)

    alike: dict[tuple[str, str], list[Mapping[Any, Any]]] = {}
    for row in rows[:_MAX_FAILURES]:
        key = (str(row["outcome"]), of_any_rank(str(row["reason"])))
        alike.setdefault(key, []).append(row)

    return tuple(_failure(first, rest, results) for first, *rest in alike.values())


def _failure(
    row: Mapping[Any, Any], rest: Iterable[Mapping[Any, Any]], results: Results
) -> dict[str, Any]:
    trial_id, attempt = str(row["trial_id"]), row["attempt"]
    result = results.get((trial_id, attempt))

    files = ""
    if row["kind"] != "imported":
        files = f"trials/{trial_id}/{attempt:03d}/{(result and result.log) or ''}"

    return {
        "attempt": f"{trial_id}-{attempt}",
        "configuration": _configuration(row),
        "others": tuple(
            f"{row['trial_id']}-{row['attempt']}: {_configuration(row)}" for row in rest
        ),
        "outcome": _in_words(row["outcome"]),
        "is_measurement": Outcome(row["outcome"]).is_measurement,
        "reason": str(row["reason"]),
        "traceback": (result and result.traceback) or "",
        "files": files,
    }


def _configuration(row: Mapping[Any, Any]) -> str:
    counts = {"world_size": "device", "num_nodes": "node"}
    settings = {
        "local_batch_size": "local batch",
        "gradient_accumulation_steps": "accumulation",
        "seed": "seed",
    }
    return ", ".join(
        counted(row[name], word) if name in counts else f"{word} {number(row[name])}"
        for name, word in (counts | settings).items()
        if not pd.isna(row[name])
    )


TRIAL_COLUMNS = [
    *("trial_id", "attempt", "kind", "world_size", "num_nodes", "local_batch_size"),
    *("gradient_accumulation_steps", "global_batch_size", "precision", "repeat"),
    *("seed", "outcome", "step_time_s", "throughput_samples_per_s", "data_wait_s"),
    *("gpu_utilization", "sample_order", "samples_to_target", "final_metric"),
    *("accepted", "validity"),
]


def trial_table(observations: pd.DataFrame) -> TextTable:
    """Return one row per attempt; columns without any value are dropped."""
    shown = observations[TRIAL_COLUMNS].copy()
    step_s, wait_s, busy = (
        observations[name].astype("Float64").astype(float)
        for name in ("step_time_s", "data_wait_s", "gpu_utilization")
    )
    for name, values, write in (
        ("step_time_s", step_s, duration),
        ("data_wait_s", wait_s / step_s, percent),
        ("gpu_utilization", busy, percent),
    ):
        shown[name] = [write(value) if np.isfinite(value) else None for value in values]

    shown["accepted"] = shown["accepted"].map({True: "yes", False: "no"})
    is_emulated = observations["emulated"].fillna(False).astype(bool)
    shown["validity"] = [
        in_words(invalid_reasons(validity), is_emulated=emulated) or None
        for validity, emulated in zip(
            observations["validity"], is_emulated, strict=True
        )
    ]
    return TextTable.of(shown)


def _in_words(reason: str) -> str:
    return reason.replace("_", " ")


def memory_table(observations: pd.DataFrame) -> TextTable:
    """Return the largest local batch that fitted and the smallest that did not.

    Empty where nothing ran out of memory.
    """
    keys = ["workload", "device_name", "precision"]
    known = observations.dropna(subset=["local_batch_size"])
    trained = [Outcome.COMPLETED, Outcome.TARGET_NOT_REACHED, Outcome.PRUNED]
    fits = known["outcome"].isin(trained)
    out = known["outcome"].eq(Outcome.OUT_OF_MEMORY).fillna(False)

    rows = []
    for key, part in known.groupby(keys, dropna=False):
        too_large = part.loc[out[part.index], "local_batch_size"]
        if too_large.empty:
            continue

        largest, memory = "none", ""
        fitted = part[fits[part.index]].sort_values("local_batch_size")
        if len(fitted):
            batch, peak = fitted[["local_batch_size", _PEAK]].iloc[-1]
            largest = number(batch)
            memory = "" if pd.isna(peak) else f"{number(peak / 2**20)} MiB"

        named: tuple[Any, ...] = key
        texts = ("" if pd.isna(value) else str(value) for value in named)
        rows.append((*texts, largest, memory, number(too_large.min())))

    columns = ("workload", "device", "precision", "largest that fitted")
    return TextTable(
        columns=(*columns, "its memory", "smallest that did not"), rows=tuple(rows)
    )


def product_check_table(runs: Sequence[WholeRun]) -> TextTable | None:
    """Compare whole runs with the product of the two laws; None: there are none."""
    if not runs:
        return None
    table = pd.DataFrame(map(asdict, runs))
    table["relative_error"] = table["predicted_s"] / table["measured_s"] - 1
    return TextTable.of(table)


def curve_table(subject: ReportSubject) -> TextTable:
    """Return the curves of a run, those with most device counts first, at most 60."""
    curves = sorted(
        subject.curves.items(), key=lambda curve: -curve[1]["world_size"].nunique()
    )
    return TextTable(
        columns=("curve", "observations", "devices", "most samples per s"),
        rows=tuple(
            (
                curve_label(key, subject.curves),
                f"{len(rows):,}",
                f"{rows['world_size'].min():,.0f} to {rows['world_size'].max():,.0f}",
                number(rows["throughput_samples_per_s"].max()),
            )
            for key, rows in curves[:_MAX_CURVES]
        ),
        num_omitted=max(0, len(curves) - _MAX_CURVES),
    )


def import_table(imported: Mapping[str, Any]) -> TextTable:
    """Return which table was imported, and how its columns were read."""
    rows = [
        ("table", imported.get("table")),
        ("SHA-256", imported.get("sha256")),
        *((f"read as {ours}", name) for ours, name in _items(imported, "columns")),
        *((f"taken as {ours}", text) for ours, text in _items(imported, "constants")),
        ("not read", ", ".join(imported.get("unused", ()))),
    ]
    known = tuple((name, str(value)) for name, value in rows if value)
    return TextTable(columns=("what", "value"), rows=known)


def _items(imported: Mapping[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    items: Mapping[str, Any] = imported.get(name, {})
    return items.items()


def provenance(observations: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return when, where and with what the observations were made, by what it is."""
    hosts = [cell for cell in observations["hosts"] if isinstance(cell, list)]
    texts = observations["versions"].dropna().unique()
    return {
        "runs": _distinct(observations["run"]),
        "from": _moment(observations["started_at"].min()),
        "to": _moment(observations["ended_at"].max()),
        "hosts": _distinct(chain.from_iterable(hosts)),
        "devices": _distinct(observations["device_name"]),
        "code": _distinct(observations["code_hash"]),
        "data": _distinct(observations["dataset"]),
        "versions": _distinct(chain.from_iterable(map(_versions, texts))),
    }


def provenance_table(observations: pd.DataFrame) -> TextTable:
    """Return the provenance as a table of what is known."""
    known = provenance(observations).items()
    rows = tuple((name, ", ".join(values)) for name, values in known if values)
    return TextTable(columns=("what", "value"), rows=rows)


def _distinct(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(v) for v in values if not pd.isna(v)))


def _moment(moment: Any) -> tuple[str, ...]:
    return () if pd.isna(moment) else (f"{moment:%Y-%m-%d %H:%M} UTC",)


def _versions(text: str) -> list[str]:
    with suppress(ValueError, AttributeError):
        known = parse_json(text.encode()).items()
        return [f"{name} {version}" for name, version in known]
    return [text]

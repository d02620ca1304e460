"""Tables of attempts, failures, curves and provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import counted, duration, number, percent
from scalelab.inputs.outcome import Outcome
from scalelab.laws.rows import curve_label, invalid_reasons
from scalelab.recommend.answer.evidence import WholeRun
from scalelab.recommend.answer.failures import of_any_rank
from scalelab.recommend.answer.sentences import reason_in_words
from scalelab.records.attempt import AttemptResult
from scalelab.records.plain_files import parse_json
from scalelab.report.subject import ReportSubject
from scalelab.report.tables import TextTable

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


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAttempts:
    """Attempts that did not complete for one reason, and what the first of them left.

    A report may be far away from the run. ``files`` is the log of the first, else its
    directory, as seen from the run's directory; empty for an imported row. ``others``
    are the further attempts, each with its configuration.
    """

    attempt: str
    configuration: str
    others: tuple[str, ...]
    outcome: str
    is_measurement: bool
    reason: str
    traceback: str
    files: str


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
) -> tuple[FailedAttempts, ...]:
    """Return the attempts that did not complete, those that measured nothing first.

    Attempts are together that ended alike and for the same reason, whatever the rank.
    """
    ended = observations["outcome"]
    bad = observations[ended.ne(Outcome.COMPLETED).fillna(False)]
    bad = bad.assign(attempt=bad["attempt"].fillna(1), reason=bad["reason"].fillna(""))
    rows = bad.to_dict("records")
    rows.sort(key=lambda row: Outcome(row["outcome"]).is_measurement)
    alike: dict[tuple[str, str], list[Mapping[Any, Any]]] = {}
    for row in rows[:_MAX_FAILURES]:
        key = (str(row["outcome"]), of_any_rank(str(row["reason"])))
        alike.setdefault(key, []).append(row)
    return tuple(_failure(first, rest, results) for first, *rest in alike.values())


def _failure(
    row: Mapping[Any, Any], rest: Iterable[Mapping[Any, Any]], results: Results
) -> FailedAttempts:
    trial_id, attempt = str(row["trial_id"]), int(row["attempt"])
    result = results.get((trial_id, attempt))
    files = ""
    if row["kind"] != "imported":
        files = f"trials/{trial_id}/{attempt:03d}/{(result and result.log) or ''}"
    return FailedAttempts(
        attempt=f"{trial_id}-{attempt}",
        configuration=_configuration(row),
        others=tuple(
            f"{each['trial_id']}-{each['attempt']}: {_configuration(each)}"
            for each in rest
        ),
        outcome=_in_words(row["outcome"]),
        is_measurement=Outcome(row["outcome"]).is_measurement,
        reason=str(row["reason"]),
        traceback=(result and result.traceback) or "",
        files=files,
    )


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


_TRIAL_COLUMNS = {
    "trial_id": "trial",
    "attempt": "attempt",
    "kind": "kind",
    "world_size": "devices",
    "num_nodes": "nodes",
    "local_batch_size": "local batch",
    "gradient_accumulation_steps": "accumulation",
    "global_batch_size": "global batch",
    "precision": "precision",
    "repeat": "repeat",
    "seed": "seed",
    "outcome": "outcome",
    "step_time_s": "step time",
    "throughput_samples_per_s": "samples per s",
    "data_wait_s": "waiting for input",
    "gpu_utilization": "device busy",
    "sample_order": "sample order",
    "samples_to_target": "samples to target",
    "final_metric": "final metric",
    "accepted": "accepted",
    "validity": "ignored because",
}


def trial_table(observations: pd.DataFrame) -> TextTable:
    """Return one row per attempt; columns without any value are dropped."""
    shown = observations[list(_TRIAL_COLUMNS)].rename(columns=_TRIAL_COLUMNS)
    step_s, wait_s, busy = (
        observations[name].astype("Float64").astype(float)
        for name in ("step_time_s", "data_wait_s", "gpu_utilization")
    )
    for title, values, write in (
        ("step time", step_s, duration),
        ("waiting for input", wait_s / step_s, percent),
        ("device busy", busy, percent),
    ):
        shown[title] = [write(each) if np.isfinite(each) else None for each in values]
    shown["accepted"] = shown["accepted"].map({True: "yes", False: "no"})
    is_emulated = observations["emulated"].fillna(False).astype(bool)
    shown["ignored because"] = [
        ", ".join(
            reason_in_words(each, is_emulated=emulated)
            for each in invalid_reasons(validity)
        )
        or None
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


def provenance_table(
    observations: pd.DataFrame, provenance: Mapping[str, Any]
) -> TextTable:
    """Return when, where and with what the observations were made."""
    hosts = [cell for cell in observations["hosts"] if isinstance(cell, list)]
    versions = observations["versions"].dropna().unique()
    rows = [
        ("runs", _distinct(observations["run"])),
        ("from", _moment(observations["started_at"].min())),
        ("to", _moment(observations["ended_at"].max())),
        ("hosts", _distinct(name for cell in hosts for name in cell)),
        ("devices", _distinct(observations["device_name"])),
        ("code", _distinct(observations["code_hash"])),
        ("data", _distinct(observations["dataset"])),
        ("versions", "; ".join(_written(_parsed(text)) for text in versions)),
        *((name, _written(value)) for name, value in provenance.items()),
    ]
    return TextTable(
        columns=("what", "value"),
        rows=tuple((name, value) for name, value in rows if value),
    )


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values if not pd.isna(v)))


def _moment(moment: Any) -> str:
    return "" if pd.isna(moment) else f"{moment:%Y-%m-%d %H:%M} UTC"


def _parsed(text: str) -> object:
    try:
        return parse_json(text.encode())
    except ValueError:
        return text


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_written(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_written(part) for part in value)
    return "" if value is None else str(value)

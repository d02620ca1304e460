"""What was run, how it ended, what was left out, and where it all came from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from scalelab.laws.rows import (
    curve_label,
    invalid_reasons,
    numbers,
    split_curves,
)
from scalelab.records.attempt import AttemptResult, Outcome
from scalelab.report.numerals import duration, number
from scalelab.report.subject import Subject, usable_rows
from scalelab.report.tables import Table

Results = Mapping[tuple[str, int], AttemptResult]
"""How attempts ended, by trial id and attempt number."""

_MEANINGS = {
    Outcome.COMPLETED: "measured what it was run for",
    Outcome.TARGET_NOT_REACHED: "trained to its limit without reaching the target",
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
_MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An attempt that measured nothing, and where to read more.

    ``log`` is a path as seen from the report, ``link`` the same as a URL; both are
    empty where there is no log.
    """

    attempt: str
    configuration: str
    outcome: str
    reason: str
    traceback: str
    log: str
    link: str


def outcome_table(observations: pd.DataFrame) -> Table:
    """Return how many attempts ended in each way."""
    counts = observations["outcome"].value_counts()
    rows = tuple(
        (str(outcome), f"{counts[outcome]:,}", meaning)
        for outcome, meaning in _MEANINGS.items()
        if outcome in counts.index
    )
    return Table(columns=("outcome", "attempts", "meaning"), rows=rows)


def failures(
    observations: pd.DataFrame, results: Results, trials_directory: str
) -> tuple[Failure, ...]:
    """Return the attempts that did not complete, at most 100.

    Parameters
    ----------
    observations : DataFrame
        See ``records.columns``.
    results
        Their tracebacks and logs, as far as known.
    trials_directory
        Where the attempts' directories are, as seen from the report.
    """
    ended = observations["outcome"]
    bad = observations[~ended.isin([Outcome.COMPLETED]) & ended.notna()]
    rows = bad.head(_MAX_FAILURES).to_dict("records")
    return tuple(_failure(row, results, trials_directory) for row in rows)


def _failure(
    row: Mapping[Any, Any], results: Results, trials_directory: str
) -> Failure:
    trial_id, attempt = str(row["trial_id"]), row["attempt"]
    number_of = 1 if attempt is pd.NA else int(attempt)
    result = results.get((trial_id, number_of))
    reason = row["reason"] if isinstance(row["reason"], str) else ""
    log = ""
    if result and result.log:
        log = f"{trials_directory}/{trial_id}/{number_of:03d}/{result.log}"
    return Failure(
        attempt=f"{trial_id}-{number_of}",
        configuration=_configuration(row),
        outcome=str(row["outcome"]),
        reason=reason,
        traceback=(result and result.traceback) or "",
        log=log,
        link=quote(log),
    )


def _configuration(row: Mapping[Any, Any]) -> str:
    parts = (
        ("world_size", "{} devices"),
        ("num_nodes", "{} node(s)"),
        ("local_batch_size", "local batch {}"),
        ("gradient_accumulation_steps", "accumulation {}"),
        ("seed", "seed {}"),
    )
    return ", ".join(
        text.format(number(row[name])) for name, text in parts if not pd.isna(row[name])
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
    "samples_to_target": "samples to target",
    "final_metric": "final metric",
    "validity": "left out because",
}


def trial_table(observations: pd.DataFrame) -> Table:
    """Return one row per attempt; columns without any value are dropped."""
    shown = observations[list(_TRIAL_COLUMNS)].rename(columns=_TRIAL_COLUMNS)
    shown["step time"] = [
        duration(value) if np.isfinite(value) else None
        for value in numbers(observations, "step_time_s")
    ]
    shown["left out because"] = [
        ", ".join(invalid_reasons(value)) or None for value in observations["validity"]
    ]
    return Table.of(shown)


def left_out_table(reasons: Mapping[str, int]) -> Table:
    """Return why observations were left out of the fits, commonest first."""
    rows = tuple(
        (_in_words(reason), f"{count:,}")
        for reason, count in Counter(reasons).most_common()
    )
    return Table(columns=("reason", "observations"), rows=rows)


def _in_words(reason: str) -> str:
    return reason.replace("_", " ")


def memory_table(observations: pd.DataFrame) -> Table:
    """Return the largest local batch that fitted and the smallest that did not.

    Empty where nothing ran out of memory.
    """
    keys = ["workload", "device_name", "precision"]
    known = observations.dropna(subset=["local_batch_size"])
    out = known["outcome"].eq(Outcome.OUT_OF_MEMORY).fillna(False)
    rows = []
    for key, part in known.groupby(keys, dropna=False):
        too_large = part.loc[out[part.index], "local_batch_size"]
        if len(too_large):
            fitted = part[part["outcome"].eq(Outcome.COMPLETED).fillna(False)]
            rows.append((*_texts(key), *_largest(fitted), number(too_large.min())))
    columns = ("workload", "device", "precision", "largest that fitted")
    return Table(
        columns=(*columns, "its memory", "smallest that did not"), rows=tuple(rows)
    )


def _largest(fitted: pd.DataFrame) -> tuple[str, str]:
    if fitted.empty:
        return ("none", "")
    largest = fitted.sort_values("local_batch_size").iloc[-1]
    peak = largest["gpu_memory_peak_bytes"]
    memory = "" if pd.isna(peak) else f"{number(peak / _MIB)} MiB"
    return number(largest["local_batch_size"]), memory


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in values)


def product_check_table(subject: Subject) -> pd.DataFrame:
    """Compare end-to-end trials with samples to target over throughput.

    Returns
    -------
    DataFrame
        ``world_size``, ``global_batch_size``, ``measured_s`` (training time to target),
        ``predicted_s`` (median samples to target of convergence trials at this batch
        over the median measured throughput at this count and batch) and
        ``relative_error``. Empty without trials of all three kinds.
    """
    observations = subject.observations
    whole = observations[observations["kind"].eq("end_to_end").fillna(False)]
    learned = observations[observations["kind"].eq("convergence").fillna(False)]
    samples = learned.groupby("global_batch_size")["samples_to_target"].median()
    rates = subject.rows.groupby(["world_size", "global_batch_size"])
    rate = rates["throughput_samples_per_s"].median()
    key = ["world_size", "global_batch_size"]
    found = whole.groupby(key)["time_to_target_s"].median().dropna().reset_index()
    found = found.astype(float).rename(columns={"time_to_target_s": "measured_s"})
    pairs = found[key].itertuples(index=False, name=None)
    predicted = [
        float(samples.get(pair[1], np.nan)) / rate.get(pair, np.nan) for pair in pairs
    ]
    found["predicted_s"] = np.array(predicted, dtype=float)
    found["relative_error"] = found["predicted_s"] / found["measured_s"] - 1
    return found.dropna().reset_index(drop=True)


def curve_table(observations: pd.DataFrame) -> Table:
    """Return the curves of a run of many, widest first, at most 60."""
    curves = split_curves(usable_rows(observations))
    keys = list(curves)
    ranked = sorted(keys, key=lambda key: -curves[key]["world_size"].nunique())
    rows = tuple(
        (
            curve_label(key, keys),
            f"{len(curves[key]):,}",
            f"{curves[key]['world_size'].min():,.0f} to "
            f"{curves[key]['world_size'].max():,.0f}",
            number(curves[key]["throughput_samples_per_s"].max()),
        )
        for key in ranked[:_MAX_CURVES]
    )
    columns = ("curve", "observations", "devices", "most samples per s")
    return Table(
        columns=columns, rows=rows, num_omitted=max(0, len(keys) - _MAX_CURVES)
    )


def provenance_table(
    observations: pd.DataFrame, provenance: Mapping[str, Any]
) -> Table:
    """Return when, where and with what the observations were made."""
    rows = [
        ("runs", _distinct(observations["run"])),
        ("from", _moment(observations["started_at"].min())),
        ("to", _moment(observations["ended_at"].max())),
        ("hosts", _distinct(_flattened(observations["hosts"]))),
        ("devices", _distinct(observations["device_name"])),
        ("code", _distinct(observations["code_hash"])),
        ("data", _distinct(observations["dataset"])),
        ("versions", "; ".join(_versions(observations["versions"]))),
        *((name, _written(value)) for name, value in provenance.items()),
    ]
    known = tuple((name, value) for name, value in rows if value)
    return Table(columns=("what", "value"), rows=known)


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values if not pd.isna(v)))


def _flattened(cells: Iterable[object]) -> list[object]:
    return [item for cell in cells if isinstance(cell, list) for item in cell]


def _moment(moment: Any) -> str:
    return "" if pd.isna(moment) else f"{moment:%Y-%m-%d %H:%M} UTC"


def _versions(cells: pd.Series) -> list[str]:
    return [_written(_parsed(text)) for text in cells.dropna().unique()]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_written(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_written(part) for part in value)
    return "" if value is None else str(value)

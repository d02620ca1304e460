"""The rows of runs as files for other tools: CSV, Parquet or JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import one_of
from scalelab.records.attempt import write_atomically
from scalelab.records.columns import (
    COLUMNS,
    CURVE_COLUMNS,
    OPTION_PREFIX,
    TARGET_COLUMNS,
)

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.session.records import RunRecords

ATTEMPT, CONFIGURATION = "attempt", "configuration"
# What attempts of one configuration have in common
_HELD = (
    *("run", "kind", *CURVE_COLUMNS, "num_nodes", "world_size", "data_parallel_size"),
    *("local_batch_size", "gradient_accumulation_steps", "global_batch_size"),
    *("lr_rule", "base_learning_rate", "warmup", *TARGET_COLUMNS),
)
# What is given as the median of the attempts whose step time is used, and of all
_TIMED = (
    *("step_time_s", "throughput_samples_per_s", "data_wait_s", "compute_s"),
    *("exposed_sync_s", "optimizer_s"),
)
_OF_ALL = (
    *("samples_to_target", "time_to_target_s", "final_metric", "energy_j"),
    *("device_power_w", "start_up_s", "allocated_gpu_s"),
)
# The beginning of a formula; further apostrophes keep those that a text has itself.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_LISTS = [column.name for column in COLUMNS if column.kind == "list"]


def rows_of(runs: Sequence[RunRecords], per: str = ATTEMPT) -> pd.DataFrame:
    """Return a row per attempt of all runs, or per configuration of each.

    A configuration has medians, of step times those that are used, the least and the
    largest step time, the largest peak memory, and how many attempts it had, were used,
    reached a target and ran out of memory.

    Raises
    ------
    SpecError
        If ``per`` is neither ``attempt`` nor ``configuration``.
    """
    import pandas as pd

    if per not in (ATTEMPT, CONFIGURATION):
        valid = one_of([ATTEMPT, CONFIGURATION], str(per))
        raise SpecError(f"per={per!r} is unknown. {valid}", code="unknown_grouping")
    parts = [run.observations for run in runs]
    if per == CONFIGURATION:
        parts = [*map(_by_configuration, runs)]
    return pd.concat(parts, ignore_index=True)


def write_rows(
    rows: pd.DataFrame, path: str | Path, *, keep_formulas: bool = False
) -> Path:
    """Write rows as the ending of the path says; lists in CSV are JSON.

    Parameters
    ----------
    keep_formulas
        Write texts in CSV as they are. Otherwise a text that a spreadsheet would run as
        a formula gets an apostrophe in front, which ``scalelab import`` takes away.

    Raises
    ------
    SpecError
        If the ending is another.
    StoreError
        If it cannot be written.
    """
    target = Path(path)
    if (write := _WRITERS.get(target.suffix)) is None:
        raise SpecError(
            f"{target.name}: the ending {target.suffix!r} says no format. End the name "
            f"with one of {', '.join(_WRITERS)}.",
            code="unknown_ending",
        )

    if target.suffix == ".csv" and not keep_formulas:
        texts = rows.select_dtypes(exclude=["number", "bool"])
        rows = rows.assign(**texts.map(_as_text))

    write_atomically(target, write(rows))
    return target


def _by_configuration(run: RunRecords) -> pd.DataFrame:
    rows = run.observations
    is_used = run.fit_rows.is_fit.to_numpy()
    ended: dict[str, Any] = {
        "num_attempts": True,
        "num_used": is_used,
        "num_reached": rows["reached_target"].fillna(False),
        "num_out_of_memory": rows["outcome"] == Outcome.OUT_OF_MEMORY,
    }

    used = {name: rows[name].where(is_used) for name in _TIMED}
    steps = {f"step_time_{end}_s": used["step_time_s"] for end in ("least", "most")}
    table = rows.assign(**used, **steps, **ended)
    settings = [name for name in rows.columns if name.startswith(OPTION_PREFIX)]
    summaries: dict[str, str] = {
        **dict.fromkeys(ended, "sum"),
        **dict.fromkeys((*_TIMED, *_OF_ALL), "median"),
        "step_time_least_s": "min",
        "step_time_most_s": "max",
        "gpu_memory_peak_bytes": "max",
    }

    groups = table.groupby([*_HELD, *settings], dropna=False, sort=False)
    return groups.agg(summaries).reset_index()


def _as_text(value: Any) -> Any:
    """Return a value that no spreadsheet runs."""
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula else value


def _csv(rows: pd.DataFrame) -> bytes:
    lists = {
        name: rows[name].map(json.dumps, na_action="ignore")
        for name in rows.columns.intersection(_LISTS)
    }
    return rows.assign(**lists).to_csv(index=False).encode()


def _parquet(rows: pd.DataFrame) -> bytes:
    content = io.BytesIO()
    rows.to_parquet(content, index=False)
    return content.getvalue()


def _json(rows: pd.DataFrame) -> bytes:
    known = rows.astype(object).where(rows.notna(), None)
    text = json.dumps(known.to_dict("records"), allow_nan=False, default=str)
    return f"{text}\n".encode()


_WRITERS: Mapping[str, Callable[[pd.DataFrame], bytes]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
}

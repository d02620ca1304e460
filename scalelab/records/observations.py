"""The observations frame: one row per attempt, in tidy form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import SchemaError, StoreError
from scalelab.experiment.program import (
    CommandProgram,
    Program,
    WorkloadProgram,
    program_to_json,
)
from scalelab.inputs.outcome import Outcome
from scalelab.plan.first_check import was_busy
from scalelab.plan.source import Observation
from scalelab.records.attempt import AttemptResult, AttemptSpec
from scalelab.records.columns import (
    COLUMNS,
    COLUMNS_BY_NAME,
    LONG_TRIAL,
    OPTION_PREFIX,
    SCHEMA_VERSION,
)

if TYPE_CHECKING:
    import pandas as pd

SUPERSEDED_ENGINE = "superseded_engine"
# Revision of the trainer's engines, stored among the versions of a result.
ENGINE_REVISION = 2
# The first revision whose asynchronous workers do not wait for each other.
FIRST_WITHOUT_MEETINGS = 2

_MISSING: Mapping[str, Any] = dict.fromkeys(column.name for column in COLUMNS)
_IDENTITY = "schema_version run trial_id repeat attempt outcome kind".split()


def row(spec: AttemptSpec, result: AttemptResult) -> Observation:
    """Return the row of an attempt that has ended."""
    values = {
        **_MISSING,
        **_configuration(spec),
        "outcome": str(result.outcome),
        "reason": result.reason or None,
    }
    for name, value in result.measurements.items():
        _check(name, value)
        if value is not None:
            values[name] = value

    measured = result.measurements.get("validity") or ()
    if not values["emulated"]:  # whose times are declared
        values["busy_machine"] = was_busy(values)
    marks = [LONG_TRIAL] if spec.trial.is_long else []
    values["validity"] = list(dict.fromkeys((*spec.validity, *measured, *marks)))
    return _with_engine_mark(values)


def _configuration(spec: AttemptSpec) -> dict[str, Any]:
    trial, program = spec.trial, spec.program
    shares = spec.placement.shares

    values = {
        "schema_version": SCHEMA_VERSION,
        "run": spec.run,
        "trial_id": trial.trial_id,
        "repeat": trial.repeat,
        "attempt": spec.number,
        "kind": str(trial.kind),
        "workload": (program.name or spec.run)
        if isinstance(program, CommandProgram)
        else trial.workload,
        "code_hash": program_hash(program),
        "emulated": spec.known.declares_times,
        "node_group": trial.node_group,
        "parallelism": trial.parallelism,
        "device_type": spec.device_type,
        "device_ids": [device for share in shares for device in share.device_ids],
        "num_nodes": trial.allocation.num_nodes,
        "gpus_per_node": trial.allocation.gpus_per_node,
        "world_size": trial.world_size,
        "data_parallel_size": trial.data_parallel_size,
        "placement": "+".join(str(len(share.device_ids)) for share in shares) or None,
        "exclusive_node": spec.exclusive_node,
        "queue_wait_s": spec.queue_wait_s,
        "threads_per_rank": spec.threads_per_rank,
        "local_batch_size": trial.local_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "global_batch_size": trial.global_batch_size,
        "sequence_length": _tokens_per_sample(spec),
        "precision": trial.precision,
        "seed": trial.seed,
    }
    if rate := trial.learning_rate:
        values |= {
            "lr_rule": rate.rule,
            "base_learning_rate": rate.base,
            "learning_rate": rate.value,
            "warmup": rate.warmup or None,
        }

    if target := trial.measurement.target:
        values |= {
            "target_metric": target.metric,
            "metric_mode": str(target.mode),
            "target_value": target.value,
        }

    options = trial.further_axes.items()
    return values | {OPTION_PREFIX + axis: value for axis, value in options}


def _tokens_per_sample(spec: AttemptSpec) -> int | None:
    program, axis = spec.program, spec.known.tokens_axis
    if not isinstance(program, WorkloadProgram) or axis is None:
        return None
    # where it is not given, a rank tells the default
    given = {**program.parameters, **spec.trial.options}.get(axis)
    return given if _is_integer(given) else None


def program_hash(program: Program) -> str:
    """Hash what a trial's ranks execute: code, command, workload parameters.

    Two programs whose code directories hold the same snapshot hash alike wherever the
    directories lie, because a snapshot's directory is named by its content. What a
    command is called, how it is asked to stop, and its job, are none of it.
    """
    values = program_to_json(program)
    if isinstance(program, CommandProgram):
        del values["name"]
        for of_no_rank in ("stop", "tokens_per_sample"):
            values.pop(of_no_rank, None)
    if directory := values["code_directory"]:
        values["code_directory"] = Path(directory).name
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _is_time(value: Any) -> bool:
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(value)
        # Nanoseconds since 1970 in 64 bits hold no others.
        return time.utcoffset() is not None and 1678 <= time.year <= 2261
    return False


def _is_integer(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("text", lambda value: isinstance(value, str)),
    "integer": ("a whole number", _is_integer),
    "number": (
        "a number",
        lambda value: (
            type(value) is float or (type(value) is int and abs(value) < 2**1000)
        ),
    ),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "time": ("an ISO 8601 time with its UTC offset", _is_time),
    "list": (
        "a list of text",
        lambda value: (
            isinstance(value, list | tuple)
            and all(isinstance(item, str) for item in value)
        ),
    ),
}


def _check(name: str, value: Any) -> None:
    column = COLUMNS_BY_NAME.get(name)
    if column is None or name in _IDENTITY:
        what = "names the attempt" if column else "is no column of the observations"
        raise StoreError(
            f"measurements[{name!r}]={value!r} {what}. Report one of the measured "
            "columns in scalelab.records.columns.COLUMNS."
        )

    rule, holds = _KINDS[column.kind]
    if value is not None and not holds(value):
        raise StoreError(
            f"measurements[{name!r}]={value!r} must be {rule}: {column.meaning}"
        )


def _with_engine_mark(values: dict[str, Any]) -> dict[str, Any]:
    """Mark what an engine measured that let asynchronous workers wait for each other.

    Only the trainer's own servers tell how stale messages were.
    """
    reasons = values.get("validity") or []
    if (
        values.get("staleness_mean") is None
        or values.get("kind") == "imported"
        or not isinstance(reasons, list)
        or SUPERSEDED_ENGINE in reasons
    ):
        return values

    try:
        revision = json.loads(values["versions"])["engines"]
    except (KeyError, TypeError, ValueError):
        revision = None  # results of the first name none

    if type(revision) is int and revision >= FIRST_WITHOUT_MEETINGS:
        return values

    return {**values, "validity": [*reasons, SUPERSEDED_ENGINE]}


def check_row(values: Any) -> Observation:
    """Accept a stored row of this or an older schema, every column present.

    One that an engine since replaced has measured is marked.
    """
    version = values["schema_version"]
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"These records have schema_version={version}; this ScaleLab reads up to "
            f"{SCHEMA_VERSION}. Install the ScaleLab that wrote them, or a newer one."
        )
    return _with_engine_mark({**_MISSING, **values})


def check_types(values: Observation) -> Observation:
    """Accept a row whose values have the types of their columns."""
    for name, value in values.items():
        if value is None and name not in _IDENTITY:
            continue
        column = COLUMNS_BY_NAME.get(name)
        if column is not None:
            rule, holds = _KINDS[column.kind]
            if not holds(value):
                raise ValueError(f"{name}={value!r} is not {rule}")
        elif name.startswith(OPTION_PREFIX) and not (
            isinstance(value, str | bool | float) or _is_integer(value)
        ):
            raise ValueError(f"{name}={value!r} is not a text, a number or a flag")

    Outcome(values["outcome"])
    return values


def counting_rows(rows: Iterable[Observation]) -> list[Observation]:
    """Return one row per trial: the attempt that counts, trials in order of appearance.

    It is the first attempt whose outcome is a measurement, else the last attempt.
    """
    by_trial: dict[str, list[Observation]] = {}
    for row in rows:
        by_trial.setdefault(row["trial_id"], []).append(row)

    counting = []
    for attempts in by_trial.values():
        attempts.sort(key=itemgetter("attempt"))
        measured = (
            attempt
            for attempt in attempts
            if Outcome(attempt["outcome"]).is_measurement
        )
        counting.append(next(measured, attempts[-1]))

    return counting


def finished_rows(
    rows: Iterable[Observation],
    superseded: Collection[tuple[str, int]] = (),
    *,
    retry_failed: bool = False,
) -> list[Observation]:
    """Return the counting rows of trials that a further sweep does not run again.

    Those that an engine since replaced has measured are run again.
    """

    def is_finished(observation: Observation) -> bool:
        outcome = Outcome(observation["outcome"])
        return outcome.is_measurement or not (outcome.is_retried or retry_failed)

    current = (
        row
        for row in rows
        if (row["trial_id"], row["attempt"]) not in superseded
        and SUPERSEDED_ENGINE not in (row.get("validity") or ())
    )
    return list(filter(is_finished, counting_rows(current)))


def frame(rows: Sequence[Observation]) -> pd.DataFrame:
    """Return rows as a frame, one column per name of ``records.columns``."""
    import pandas as pd

    checked = [check_row(values) for values in rows]
    names = {name for values in checked for name in values}
    options = sorted(name for name in names if name.startswith(OPTION_PREFIX))

    columns: dict[str, Any] = {}
    for column in COLUMNS:
        values = [values[column.name] for values in checked]
        columns[column.name] = _array(values, column.kind)
        if column.name == "parallelism":
            for name in options:
                values = [values.get(name) for values in checked]
                columns[name] = _array(*_option(values))

    return pd.DataFrame(columns)


_DTYPES: Mapping[str, Any] = {
    "integer": "Int64",
    "number": "Float64",
    "flag": "boolean",
    "text": "string",
}


def _array(values: list[Any], kind: str) -> Any:
    import pandas as pd

    if kind == "time":
        return pd.to_datetime(
            pd.Series(values, dtype="object"), utc=True, format="ISO8601"
        ).astype("datetime64[ns, UTC]")

    if kind == "list":
        values = [None if value is None else list(value) for value in values]
        return pd.Series(values, dtype="object")

    return pd.array(values, dtype=_DTYPES[kind])


def _option(values: list[Any]) -> tuple[list[Any], str]:
    present = [value for value in values if value is not None]
    for kind in ("flag", "integer", "number"):
        if all(map(_KINDS[kind][1], present)):
            return values, kind
    return [None if value is None else str(value) for value in values], "text"

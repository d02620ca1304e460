"""Prepare observations for a law: which rows are fit for it, on which curves."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import strategy_of
from scalelab.kinds.strategy import Strategy
from scalelab.laws.left_out import LeftOut
from scalelab.records.columns import (
    CURVE_COLUMNS,
    FIRST_EPOCH,
    LONG_TRIAL,
    OPTION_PREFIX,
)

CONFIGURATION = (
    "world_size",
    "num_nodes",
    "local_batch_size",
    "gradient_accumulation_steps",
    "data_parallel_size",
)
"""Columns along which a step-time curve is fitted."""

_USABLE_OUTCOMES = ("completed", "target_not_reached", "pruned")
_MASKED = (pd.arrays.BooleanArray, pd.arrays.FloatingArray, pd.arrays.IntegerArray)
_KINDS_OF_SAMPLES = (TrialKind.CONVERGENCE, TrialKind.END_TO_END)
_OF_SAMPLES = ("measured for samples to a target",)

CurveKey = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, kw_only=True)
class FitRows:
    """Observations prepared for step-time laws, once for everyone who reads them."""

    # The observations as they were measured, with an index of distinct numbers
    observations: pd.DataFrame
    # By the same index, what a law reads of each observation: the curve columns, the
    # configuration columns, ``step_time_s`` (of as many samples as were asked for),
    # ``own_error``, ``gradient_bytes``, and why and by which factor later steps take
    # another time, as a long trial has seen
    completed: pd.DataFrame
    # By the same index, tuples of why an observation is unfit for a law
    reasons: pd.Series

    @cached_property
    def is_fit(self) -> pd.Series:
        """Whether nothing speaks against an observation, by the same index."""
        return self.reasons.map(len) == 0

    @property
    def used(self) -> pd.DataFrame:
        """The observations that are fit for a law."""
        return self.observations[self.is_fit]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows of ``completed`` that are fit for a law, each measurement once."""
        fit = self.completed[self.is_fit]
        return fit.drop_duplicates([*curve_columns(fit), *CONFIGURATION, "step_time_s"])

    @cached_property
    def curves(self) -> Mapping[CurveKey, pd.DataFrame]:
        """The fit rows of each curve."""
        return split_curves(self.frame) if len(self.frame) else {}

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """How many observations are unfit, and why.

        Long trials are not counted, nor trials that were run to learn how many samples
        a target needs, where they say nothing of step times.
        """
        hidden = (_OF_SAMPLES, (LONG_TRIAL,))
        return LeftOut.counted(why for why in self.reasons if why not in hidden)

    def take(self, index: pd.Index) -> Self:
        """Return some of the observations, named by their index."""
        if index.equals(self.observations.index):
            return self
        return replace(
            self,
            observations=self.observations.loc[index],
            completed=self.completed.loc[index],
            reasons=self.reasons.loc[index],
        )


Observed = pd.DataFrame | FitRows
"""Rows of the observations frame, as measured or already prepared."""


def prepared(observations: Observed) -> FitRows:
    """Return observations prepared for step-time laws; prepared ones unchanged."""
    if isinstance(observations, FitRows):
        return observations
    return step_time_rows(observations)


def curve_columns(observations: pd.DataFrame) -> list[str]:
    """Return the columns that separate curves: what is held fixed along a curve."""
    names = list(map(str, observations.columns))
    options = sorted(name for name in names if name.startswith(OPTION_PREFIX))
    return [*(name for name in CURVE_COLUMNS if name in names), *options]


def split_curves(frame: pd.DataFrame) -> dict[CurveKey, pd.DataFrame]:
    """Split rows into curves; the key of a curve leaves out missing values."""
    return group_rows(frame, curve_columns(frame))


def group_rows(
    frame: pd.DataFrame, columns: Sequence[str]
) -> dict[CurveKey, pd.DataFrame]:
    """Group rows by columns, sorted by key; keys leave out missing values."""
    if not columns:
        return {(): frame}
    curves: dict[CurveKey, list[int]] = {}
    values = zip(*(frame[name].tolist() for name in columns), strict=True)
    for position, row in enumerate(values):
        key = tuple(
            (name, value)
            for name, value in zip(columns, row, strict=True)
            if not _is_missing(value)
        )
        curves.setdefault(key, []).append(position)

    return {key: frame.iloc[curves[key]] for key in sorted(curves, key=str)}


def _is_missing(value: object) -> bool:
    return (
        value is None or value is pd.NA or (isinstance(value, float) and value != value)
    )


def agreeing(keys: Iterable[CurveKey], asked: Mapping[str, object]) -> list[CurveKey]:
    """Return the keys of curves that agree with what is asked, where it says."""
    return [
        key
        for key in keys
        if all(asked.get(name, value) == value for name, value in key)
    ]


def curve_label(key: CurveKey, keys: Iterable[CurveKey]) -> str:
    """Return a label: the columns in which a curve differs from other curves."""
    others = [dict(other) for other in keys]
    differing = [
        f"{name.removeprefix(OPTION_PREFIX)}={value}"
        for name, value in key
        if any(other.get(name) != value for other in others)
    ]
    return ", ".join(differing) or str(dict(key).get("workload", "all rows"))


def curve_name(key: CurveKey, keys: Collection[CurveKey]) -> str:
    """Return the label of a curve; empty where it is the only curve."""
    return curve_label(key, keys) if len(keys) > 1 else ""


def invalid_reasons(value: object) -> tuple[str, ...]:
    """Return the reasons in a ``validity`` cell: a list, a text, or missing."""
    if isinstance(value, str):
        return tuple(part for part in value.replace(",", " ").split() if part)
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(str(part) for part in value)
    return ()


def numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as floats, NaN where it is missing or absent; shape (n_rows,)."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    column = frame[name]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiu":
        return column.to_numpy(dtype=float, copy=True)
    if pd.api.types.is_numeric_dtype(column.dtype):  # with a mask of missing values
        return column.to_numpy(dtype=float, na_value=np.nan)
    values = pd.to_numeric(column, errors="coerce")
    return np.asarray(values.astype("Float64").to_numpy(dtype=float, na_value=np.nan))


def known_or(values: np.ndarray, otherwise: np.ndarray | float) -> np.ndarray:
    """Return values, and where one is not finite what stands for it."""
    return np.where(np.isfinite(values), values, otherwise)


def configurations(frame: pd.DataFrame) -> pd.DataFrame:
    """Complete the configuration columns of a frame."""
    batches = ("local_batch_size", "global_batch_size")
    if "world_size" not in frame.columns or not set(batches) & set(frame.columns):
        raise SpecError(
            f"The table has the columns {sorted(map(str, frame.columns))[:12]}; a law "
            "needs world_size and one of local_batch_size and global_batch_size. Map "
            "the table's own columns to these names.",
            code="columns_missing",
        )

    world = numbers(frame, "world_size")
    accumulation = known_or(numbers(frame, "gradient_accumulation_steps"), 1.0)

    local, total = (numbers(frame, name) for name in batches)
    with np.errstate(divide="ignore", invalid="ignore"):
        full_nodes = known_or(np.ceil(world / numbers(frame, "gpus_per_node")), 1.0)
        parallel = total / (local * accumulation)
        parallel = np.where(parallel < world * (1 - 1e-9), parallel, world)
        parallel = known_or(numbers(frame, "data_parallel_size"), parallel)
        local = known_or(local, total / (parallel * accumulation))
        total = local * parallel * accumulation

    return pd.DataFrame(
        {
            "world_size": world,
            "num_nodes": known_or(numbers(frame, "num_nodes"), full_nodes),
            "local_batch_size": local,
            "gradient_accumulation_steps": accumulation,
            "data_parallel_size": parallel,
            "global_batch_size": total,
        },
        index=frame.index,
    )


def step_time_rows(observations: pd.DataFrame) -> FitRows:
    """Complete the observations and find out which step times may be fitted."""
    observations = _as_arrays(observations.reset_index(drop=True))
    completed = configurations(observations)
    throughput = numbers(observations, "throughput_samples_per_s")
    implied = completed["global_batch_size"] / throughput
    step_time = known_or(numbers(observations, "step_time_s"), implied)
    # of as many samples as were asked for, where a step trains on others
    drawn = numbers(observations, "samples_per_step")
    step_time *= known_or(completed["global_batch_size"] / drawn, 1.0)
    is_timed = np.isfinite(step_time) & (step_time > 0)
    counts = completed[list(CONFIGURATION)].to_numpy()
    is_possible = (np.isfinite(counts) & (counts >= 1)).all(axis=1)
    is_possible &= (completed["num_nodes"] <= completed["world_size"]).to_numpy()
    columns = (cells(observations, name) for name in ("kind", "outcome", "validity"))
    reasons = [
        _why_unfit(*row) for row in zip(*columns, is_possible, is_timed, strict=True)
    ]
    held_fixed = observations[curve_columns(observations)]
    later = _told_by_long_trials(observations)
    step_time *= later["later_factor"].where(later["later_differs"] == FIRST_EPOCH, 1.0)

    return FitRows(
        observations=observations,
        completed=pd.concat([held_fixed, completed, later], axis=1).assign(
            step_time_s=step_time,
            own_error=_own_error(observations),
            gradient_bytes=numbers(observations, "gradient_bytes"),
        ),
        reasons=pd.Series(reasons, index=observations.index, dtype=object),
    )


def _as_arrays(observations: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with numbers of numpy's types and texts of Python's.

    These types are faster where some dozens of rows are taken; Arrow's are for long
    columns.
    """
    types = {
        name: array_type
        for name, column in observations.items()
        if (array_type := _array_type(column))
    }
    return observations.astype(types).copy()  # the copy joins columns of one type


def _array_type(column: pd.Series) -> type | str | None:
    """Return the faster type of a column; None where the column keeps its own."""
    if column.dtype.name == "string":
        return "string[python]"
    if not isinstance(column.array, _MASKED):
        return None
    if column.hasnans:
        is_float = column.dtype.kind == "f"
        is_empty = column.dtype.kind == "i" and column.isna().all()
        return float if is_float or is_empty else None
    return column.dtype.type


def _told_by_long_trials(observations: pd.DataFrame) -> pd.DataFrame:
    """Return why later steps of rows take another time, and by which factor.

    The index is that of the observations. The factor compares the later steps with the
    median of all runs of the configuration, the window of the long trial among them. A
    long trial speaks for the other rows of its program; a long trial with a slow first
    epoch speaks for the rows that ended within that epoch. A long trial beside busy
    programs, or with a further mark, says nothing.
    """
    names = ["run", f"{OPTION_PREFIX}{PROGRAM}"]
    programs = observations.reindex(columns=names).groupby(names, dropna=False).ngroup()
    whys = observations.reindex(columns=["later_differs"])["later_differs"]
    places = observations.reindex(columns=[*CONFIGURATION]).fillna(0)
    moved = pd.DataFrame({"later_differs": None, "later_factor": 1.0}, whys.index)

    for at in whys.index[whys.notna()]:
        row, is_other = observations.loc[at], (programs == programs[at]) & whys.isna()
        is_marked = invalid_reasons(row["validity"]) != (LONG_TRIAL,)
        if is_marked or str(row.get("busy_machine")) == "True":
            continue
        if whys[at] == FIRST_EPOCH:
            samples = numbers(observations, "num_samples")
            is_other &= samples <= row["first_epoch_samples"]
        is_alike = is_other & (places == places.loc[at]).all(axis=1)
        before_s = [row["window_step_time_s"], *observations["step_time_s"][is_alike]]
        moved.loc[is_other] = (
            whys[at],
            row["later_step_time_s"] / np.nanmedian(before_s),
        )

    return moved


def _own_error(observations: pd.DataFrame) -> np.ndarray:
    """Return the standard deviations of log mean step times, by their 95% intervals."""
    lo, hi = (numbers(observations, f"step_time_{end}_s") for end in ("lo", "hi"))
    is_known = (0 < lo) & (lo < hi) & (hi < np.inf)
    lo, hi = (np.where(is_known, end, 1.0) for end in (lo, hi))
    return np.asarray(np.log(hi / lo) / (2 * NormalDist().inv_cdf(0.975)))


def strategies(frame: pd.DataFrame) -> list[Strategy]:
    """Return the strategy of each row; see :func:`~.strategies.strategy_of`."""
    return [strategy_of(name) for name in cells(frame, "parallelism")]


def altering_options(frame: pd.DataFrame) -> list[dict[str, Scalar]]:
    """Return the options of each row that alter what is learned; mostly none."""
    ways = strategies(frame)
    given: list[dict[str, Any]] = [{} for _ in ways]
    for axis in sorted({axis for way in set(ways) for axis in way.options}):
        for row, value in zip(given, cells(frame, OPTION_PREFIX + axis), strict=True):
            if not _is_missing(value):
                row[axis] = value
    return [dict(w.altering_options(row)) for w, row in zip(ways, given, strict=True)]


def cells(frame: pd.DataFrame, name: str) -> Sequence[object]:
    """Return the values of a column; None for each row if the column is missing."""
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)


def _why_unfit(
    kind: object, outcome: object, validity: object, is_possible: bool, is_timed: bool
) -> tuple[str, ...]:
    if isinstance(outcome, str) and outcome not in _USABLE_OUTCOMES:
        return (outcome,)
    if reasons := invalid_reasons(validity):
        return tuple(sorted(reasons))
    if not is_timed:
        is_of_samples = isinstance(kind, str) and kind in _KINDS_OF_SAMPLES
        return _OF_SAMPLES if is_of_samples else ("no step time",)
    return () if is_possible else ("no possible configuration",)


def checked_configurations(frame: pd.DataFrame) -> pd.DataFrame:
    """Complete configurations as :func:`configurations` does, and check each value."""
    completed = configurations(frame)
    for name in CONFIGURATION:
        values = completed[name].to_numpy()
        known, rule = values >= 1, "1 or more"
        if name == "local_batch_size":
            known, rule = values > 0, "a positive number"
        _refuse(completed, name, ~(np.isfinite(values) & known), rule)

    idle = (completed["num_nodes"] > completed["world_size"]).to_numpy()
    _refuse(completed, "num_nodes", idle, "world_size at most: every node has a device")
    return completed


def positive(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as positive, finite floats, shape (n_rows,)."""
    if name not in frame.columns and len(frame):
        known = sorted(map(str, frame.columns))[:12]
        raise SpecError(
            f"The configurations have the columns {known}, but the law needs {name}. "
            "Add that column.",
            code="columns_missing",
        )
    values = numbers(frame, name)
    _refuse(frame, name, ~(np.isfinite(values) & (values > 0)), "a positive number")
    return values


def positive_if_given(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return a column as :func:`positive` does, NaN where a value is missing."""
    values = numbers(frame, name)
    given = [not _is_missing(cell) for cell in cells(frame, name)]
    wrong = np.array(given, bool) & ~(np.isfinite(values) & (values > 0))
    _refuse(frame, name, wrong, "a positive number, or missing")
    return values


def _refuse(frame: pd.DataFrame, name: str, wrong: np.ndarray, rule: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise SpecError(
            f"{name}={frame[name].iloc[row]} (row {row + 1} of {len(frame)}) must be "
            f"{rule}. Correct the value.",
            code="bad_value",
        )

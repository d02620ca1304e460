"""Samples to a target that no trial stopped at, read from metric curves.

A run that was stopped at accuracy 0.80 reached 0.75 before, and its evaluations say
when; a run that never reached the target gives a lower bound. This is valid only where
the learning rate did not depend on the planned length of the run: under a decaying
schedule, a run that was planned for 0.75 would have had other learning rates. Rows with
such a schedule are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from scalelab.errors import FitError
from scalelab.inputs.target import Target
from scalelab.laws.convergence.rows import is_equal
from scalelab.laws.rows import cells, numbers

_KINDS = ("convergence", "end_to_end")
_CONSTANT = "constant"
_PLAIN = ("attempt", "step", "samples", "t", "loss")


def read_target(
    observations: pd.DataFrame, streams: pd.DataFrame, target: Target
) -> pd.DataFrame:
    """Read from metric curves when each run first reached a target."""
    is_kind = [kind in _KINDS for kind in cells(observations, "kind")]
    tried = observations[np.array(is_kind, dtype=bool)]
    curves = _curves(streams, target.metric)
    if tried.empty or not curves:
        named = streams.select_dtypes("number").dropna(axis=1, how="all").columns
        seen = {str(n) for n in named if n not in _PLAIN and not str(n).endswith("_s")}
        evaluated = sorted(seen | _tried_for(observations))
        raise FitError(_not_evaluated(target.metric, evaluated))
    keys = list(zip(tried["trial_id"], tried["attempt"], strict=True))
    schedules = cells(tried, "schedule")
    is_steady = [not isinstance(s, str) or s.endswith(_CONSTANT) for s in schedules]
    is_read = np.array([key in curves for key in keys]) & np.array(
        is_steady, dtype=bool
    )
    read = [curves[key] for key, kept in zip(keys, is_read, strict=True) if kept]
    reached = [_first(curve, target) for curve in read]
    rows: pd.DataFrame = tried[is_read]
    return rows.assign(
        outcome=["completed" if at else "target_not_reached" for at in reached],
        reached_target=[at is not None for at in reached],
        samples_to_target=pd.array(reached, dtype="Int64"),
        num_samples=pd.array([int(curve[:, 0].max()) for curve in read], dtype="Int64"),
        target_metric=target.metric,
        metric_mode=str(target.mode),
        target_value=target.value,
    )


def _tried_for(observations: pd.DataFrame) -> set[str]:
    return {m for m in cells(observations, "target_metric") if isinstance(m, str)}


def _not_evaluated(metric: str, evaluated: list[str]) -> str:
    remedy = f"convergence trials that evaluate {metric}"
    otherwise = "or leave the target out and say how long the job is."
    if not evaluated:
        return (
            f"No run evaluated {metric}, nor any other metric: nothing tells how many "
            f"samples it takes. Run {remedy}, {otherwise}"
        )
    return (
        f"No convergence trial evaluated {metric}. Evaluated: {', '.join(evaluated)}. "
        f"Ask for one of these, run {remedy}, {otherwise}"
    )


def _curves(
    streams: pd.DataFrame, metric: str
) -> dict[tuple[object, object], np.ndarray]:
    # samples and metric by attempt, shape (n_evaluations, 2), in order
    if metric not in streams.columns:
        return {}
    table = streams[["trial_id", "attempt"]].assign(
        samples=numbers(streams, "samples"), value=numbers(streams, metric)
    )
    table = table.dropna().sort_values("samples", kind="stable")
    return {
        (trial, attempt): part[["samples", "value"]].to_numpy(float)
        for (trial, attempt), part in table.groupby(["trial_id", "attempt"])
    }


def _first(curve: np.ndarray, target: Target) -> int | None:
    """Return the samples seen at the first evaluation that reached the target."""
    reached = (int(seen) for seen, value in curve if target.is_reached_by(value))
    return next(reached, None)


def answering(
    observations: pd.DataFrame, streams: Callable[[], pd.DataFrame], target: Target
) -> pd.DataFrame:
    """Return observations of a target, measured or read from metric curves."""
    is_measured = is_equal(observations, "target_metric", target.metric)
    is_measured &= numbers(observations, "target_value") == target.value
    if is_measured.any():
        return observations
    evaluations = streams()
    try:
        rows = read_target(observations, evaluations, target)
    except FitError:
        is_evaluated = target.metric in _tried_for(observations) or (
            target.metric in evaluations.columns
            and evaluations[target.metric].notna().any()
        )
        if is_evaluated:
            return observations
        raise
    others = observations.drop(index=rows.index)
    return pd.concat([others, rows]).sort_index()

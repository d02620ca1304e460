"""Read from the metric curves of runs when each first reached a target.

A run that was stopped at accuracy 0.80 reached 0.75 before, and its evaluations say
when; a run that never reached the target gives a lower bound. This is valid only where
the learning rate did not depend on the planned length of the run: under a decaying
schedule, a run that was planned for 0.75 would have had other learning rates. Rows with
such a schedule are left out.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from scalelab.errors import FitError
from scalelab.inputs.target import Target
from scalelab.laws.convergence.rows import is_equal
from scalelab.laws.rows import cells, numbers

ATTEMPT = ["trial_id", "attempt"]
"""The columns that name an attempt, in observations and in streams."""
_KINDS = ("convergence", "end_to_end")
_CONSTANT = "constant"
_PLAIN = ("attempt", "step", "samples", "t", "loss")


def read_target(
    observations: pd.DataFrame, streams: pd.DataFrame, target: Target
) -> pd.DataFrame:
    """Read from metric curves when each run first reached a target."""
    is_kind = [kind in _KINDS for kind in cells(observations, "kind")]
    tried = observations[np.array(is_kind, dtype=bool)]

    curves = metric_curves(streams, target.metric)
    if tried.empty or curves.empty:
        named = streams.select_dtypes("number").dropna(axis=1, how="all").columns
        seen = {str(n) for n in named if n not in _PLAIN and not str(n).endswith("_s")}
        evaluated = sorted(seen | _tried_for(observations))
        raise FitError(_not_evaluated(target.metric, evaluated))

    first = curves["samples"].where(curves["value"].map(target.is_reached_by))
    seen_by = curves.assign(first=first).groupby(ATTEMPT)
    ends = seen_by.agg(last_seen=("samples", "max"), first_reached=("first", "min"))
    schedules = cells(tried, "schedule")
    is_steady = [not isinstance(s, str) or s.endswith(_CONSTANT) for s in schedules]
    read = tried[is_steady].join(ends, on=ATTEMPT).dropna(subset="last_seen")
    is_reached = read["first_reached"].notna()

    return read.drop(columns=ends.columns).assign(
        outcome=np.where(is_reached, "completed", "target_not_reached"),
        reached_target=is_reached,
        samples_to_target=read["first_reached"].astype("Int64"),
        num_samples=read["last_seen"].astype("Int64"),
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


def metric_curves(streams: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the evaluations of a metric, in order, from the streams of a run.

    Returns
    -------
    DataFrame
        ``trial_id``, ``attempt``, ``samples`` (trained until then) and ``value``; empty
        where nothing evaluated the metric.
    """
    attempts = streams.reindex(columns=ATTEMPT)
    table = attempts.astype({"trial_id": str, "attempt": int}).assign(
        samples=numbers(streams, "samples"), value=numbers(streams, metric)
    )
    return table.dropna().sort_values("samples", kind="stable")


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

    return pd.concat([observations.drop(index=rows.index), rows]).sort_index()

"""The ways to train that were measured, side by side: time, accuracy, staleness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.document import Scalar
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.strategies import strategy_of
from scalelab.laws.rows import (
    CurveKey,
    altering_options,
    cells,
    group_rows,
    invalid_reasons,
    numbers,
    strategies,
)
from scalelab.recommend.answer.way_rows import Spread, WayRow
from scalelab.records.columns import OPTION_PREFIX

ACCURACY_GAP = "accuracy_gap"
_SAME = (
    "workload",
    "code_hash",
    "dataset",
    "precision",
    "sequence_length",
    "target_metric",
    "num_samples",
    "global_batch_size",
    "seed",
)
_PERIOD = OPTION_PREFIX + "averaging_period"
_SERVERS = OPTION_PREFIX + "num_servers"


def ways(observations: pd.DataFrame) -> tuple[WayRow, ...]:
    """Compare the ways to train at every number of devices and global batch.

    A way is a strategy with its options, of which those are named that were varied.
    """
    measured = [
        isinstance(outcome, str) and Outcome(outcome).is_measurement
        for outcome in cells(observations, "outcome")
    ]
    frame = with_accuracy_gaps(observations)[np.array(measured, dtype=bool)]
    used = {strategy.name: strategy for strategy in strategies(frame)}.values()
    options = {OPTION_PREFIX + axis for each in used for axis in each.options}
    columns = ["parallelism", *sorted(options & {*map(str, frame.columns)})]
    if "parallelism" not in frame.columns:
        return ()
    by_way = group_rows(frame, columns)
    if len(by_way) < 2:
        return ()
    varied = _varied(by_way)
    rows = [
        row
        for key in sorted(by_way, key=_in_order)
        for row in _rows(dict(key), by_way[key], varied)
    ]
    return tuple(sorted(rows, key=lambda row: (row.world_size, row.global_batch_size)))


def _in_order(key: CurveKey) -> list[tuple[str, bool, Scalar]]:
    return [(name, isinstance(value, str), value) for name, value in key]


def _varied(by_way: Mapping[Any, pd.DataFrame]) -> set[tuple[Scalar, str]]:
    seen: dict[tuple[Scalar, str], set[Scalar | None]] = {}
    for key in by_way:
        way = dict(key)
        own = strategy_of(way.get("parallelism")).options
        for axis in own:
            name = (way.get("parallelism", ""), OPTION_PREFIX + axis)
            seen.setdefault(name, set()).add(way.get(OPTION_PREFIX + axis))
    return {name for name, values in seen.items() if len(values) > 1}


def _rows(
    way: Mapping[str, Scalar], rows: pd.DataFrame, varied: set[tuple[Scalar, str]]
) -> Iterator[WayRow]:
    name = way.get("parallelism", "")
    settings = {
        option.removeprefix(OPTION_PREFIX): value
        for option, value in way.items()
        if (name, option) in varied and option not in (_PERIOD, _SERVERS)
    }
    for key, there in group_rows(rows, ["world_size", "global_batch_size"]).items():
        place = dict(key)
        if len(place) == 2:
            yield _row(str(name), way, settings, place, there)


def _row(
    name: str,
    way: Mapping[str, Scalar],
    settings: Mapping[str, Scalar],
    place: Mapping[str, Scalar],
    rows: pd.DataFrame,
) -> WayRow:
    world_size = int(place["world_size"])
    options = {axis.removeprefix(OPTION_PREFIX): value for axis, value in way.items()}
    evaluated = rows[np.isfinite(numbers(rows, "final_metric"))]
    period = way.get(_PERIOD)
    return WayRow(
        parallelism=name,
        settings=settings,
        world_size=world_size,
        global_batch_size=int(place["global_batch_size"]),
        step_time_s=_median(_timed(rows), "step_time_s"),
        time_to_target_s=_median(rows, "time_to_target_s"),
        num_reached=int(np.isfinite(numbers(rows, "time_to_target_s")).sum()),
        num_evaluated=len(evaluated),
        final_metric=_spread(evaluated, "final_metric"),
        accuracy_gap=_spread(evaluated, ACCURACY_GAP),
        staleness_mean=_mean(rows, "staleness_mean"),
        staleness_max=_largest(rows, "staleness_max"),
        averaging_period=None if period is None else int(period),
        bubble_share=_median(rows, "bubble_share"),
        num_servers=strategy_of(name).num_servers(world_size, options) or None,
    )


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    is_fit = [not invalid_reasons(each) for each in cells(rows, "validity")]
    fit = rows[np.array(is_fit, dtype=bool)]
    of_throughput = fit[np.array([k == "throughput" for k in cells(fit, "kind")], bool)]
    return of_throughput if len(of_throughput) else fit


def _known(rows: pd.DataFrame, name: str) -> np.ndarray:
    values = numbers(rows, name)
    return np.asarray(values[np.isfinite(values)])


def _median(rows: pd.DataFrame, name: str) -> float | None:
    known = _known(rows, name)
    return float(np.median(known)) if len(known) else None


def _mean(rows: pd.DataFrame, name: str) -> float | None:
    known = _known(rows, name)
    return float(known.mean()) if len(known) else None


def _largest(rows: pd.DataFrame, name: str) -> int | None:
    known = _known(rows, name)
    return int(known.max()) if len(known) else None


def _spread(rows: pd.DataFrame, name: str) -> Spread | None:
    known = _known(rows, name)
    if not len(known):
        return None
    lo, hi = float(known.min()), float(known.max())
    return Spread(mean=float(known.mean()), lo=lo, hi=hi, count=len(known))


def with_accuracy_gaps(observations: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``accuracy_gap``: the final metric minus that of one process.

    Runs are paired: the one process, whatever its strategy, if that trains the plain
    model on one rank, has seen as many samples, with the same global batch, seed, data,
    precision and workload. A trial that stopped at a target has seen as many only by
    chance: give trials a number of epochs and no target to compare them so.
    """
    metric, keys = numbers(observations, "final_metric"), _keys(observations)
    metric[~np.isfinite(numbers(observations, "num_samples"))] = np.nan
    is_alone = numbers(observations, "world_size") == 1
    alters = np.array([bool(each) for each in altering_options(observations)], bool)
    is_plain = is_alone & ~alters
    alone = pd.Series(metric[is_plain]).groupby(keys[is_plain]).mean()
    gap = metric - pd.Series(keys).map(alone).to_numpy(dtype=float)
    gap[is_alone] = np.nan
    return observations.assign(**{ACCURACY_GAP: gap})


def _keys(observations: pd.DataFrame) -> np.ndarray:
    used = {strategy.name: strategy for strategy in strategies(observations)}.values()
    of_strategies = {OPTION_PREFIX + axis for each in used for axis in each.options}
    options = [
        name
        for name in map(str, observations.columns)
        if name.startswith(OPTION_PREFIX) and name not in of_strategies
    ]
    columns = [cells(observations, name) for name in (*_SAME, *options)]
    keys = [repr(key) for key in zip(*columns, strict=True)]
    return np.array(keys, dtype=object)

"""Strong and weak scaling: what was measured, and what is predicted beside it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from scalelab.errors import NotIdentifiableError
from scalelab.inputs.numerals import Interval
from scalelab.laws.rows import CONFIGURATION, CurveKey, split_curves
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.rows import MeasuredStep, OutlookRow, ScalingSeries
from scalelab.recommend.prediction.outlook import Baseline, look_ahead, outlook_rows

# What all allocations of a series have in common, by the kind of scaling
_COMMON = {
    "strong": ["global_batch_size"],
    "weak": ["local_batch_size", "gradient_accumulation_steps"],
}
_PLACE = ["world_size", "num_nodes"]
_OF_RUNS = ("median", "min", "max", "size")
_MOST_PASSES = 64


def scaling_series(
    considered: Considered, rows: Sequence[OutlookRow]
) -> tuple[ScalingSeries, ...]:
    """Return the series of the chosen row's curve, strong scaling first.

    A series is there where it was measured on at least two device counts: at the batch
    of the chosen row, else at the batch with most device counts. Predicted are larger
    device counts of the rows, and those between. Efficiency is against the smallest.
    """
    comparison, knowledge = considered.comparison, considered.knowledge
    at = comparison.choice.index
    (key,) = split_curves(comparison.printed.questions.iloc[[at]])
    chosen, curve = comparison.printed.frame.iloc[at], knowledge.rows.curves[key]

    found = []
    for scaling, names in _COMMON.items():
        if common := _in_common(curve, names, chosen):
            with suppress(NotIdentifiableError):  # it has no known need of samples
                is_of_it = np.all([curve[n] == common[n] for n in names], axis=0)
                shown = _predicted(considered, rows, key, curve[is_of_it], common)
                series = ScalingSeries(scaling, common[names[0]], *shown)
                if series.rows[0].is_baseline:  # else its need of samples is unknown
                    found.append(series)

    return tuple(found)


def _in_common(
    curve: pd.DataFrame, names: list[str], chosen: pd.Series
) -> dict[str, int]:
    """Return what a series has in common; empty where none has two device counts."""
    counts = curve.groupby(names)["world_size"].nunique().reset_index(name="counts")
    counts = counts[counts["counts"] > 1]
    if counts.empty:
        return {}
    is_chosen = np.all([counts[name] == chosen[name] for name in names], axis=0)
    ranked = counts.assign(is_chosen=is_chosen)
    best = ranked.sort_values(["is_chosen", "counts", *names]).iloc[-1]
    return {name: int(best[name]) for name in names}


def _predicted(
    considered: Considered,
    rows: Sequence[OutlookRow],
    key: CurveKey,
    measured: pd.DataFrame,
    common: Mapping[str, int],
) -> tuple[tuple[OutlookRow, ...], tuple[MeasuredStep | None, ...]]:
    """Return the rows of a series, and what was measured of each."""
    knowledge, limits = considered.knowledge, considered.limits
    drawn = measured["global_batch_size"].map(knowledge.need.samples_per_step)
    # the law's times are of the samples that were asked for
    times_s = measured["step_time_s"] * drawn / measured["global_batch_size"]
    runs = measured.assign(step_time_s=times_s).groupby([*CONFIGURATION])["step_time_s"]
    points = runs.agg([*_OF_RUNS]).reset_index()
    points = points.sort_values("median").drop_duplicates(_PLACE)
    shares = points["data_parallel_size"] / points["world_size"]
    smallest, known = points["world_size"].min(), {*points["world_size"]}
    further = [
        (row.world_size, row.num_nodes, *split)
        for row in rows
        if row.world_size > smallest and row.world_size not in known
        for split in _splits(common, row.world_size * shares.iloc[0])
    ]

    others = pd.DataFrame(further, columns=[*CONFIGURATION]).assign(**dict(key))
    others = others[knowledge.memory.fits(others)].drop_duplicates(_PLACE)
    asked = pd.concat([points[[*CONFIGURATION]].assign(**dict(key)), others])
    asked = asked.sort_values(_PLACE).reset_index(drop=True)
    asked = asked.astype(dict.fromkeys(CONFIGURATION, int))
    outlook = look_ahead(asked, knowledge, limits, accepts_unmeasured=True)
    base = Baseline.at(asked.iloc[[0]], knowledge.step_times)
    found = outlook_rows(outlook, -1, base, limits, knowledge)
    of_place = {
        (int(size), int(nodes)): MeasuredStep(Interval(value=v, lo=lo, hi=hi), int(n))
        for size, nodes, v, lo, hi, n in points[[*_PLACE, *_OF_RUNS]].to_numpy(float)
    }
    return found, tuple(of_place.get((row.world_size, row.num_nodes)) for row in found)


def _splits(
    common: Mapping[str, int], data_parallel_size: float
) -> Iterator[tuple[int, int, int]]:
    """Yield local batches, passes and data-parallel sizes, the fewest passes first."""
    parallel = round(data_parallel_size)
    if abs(parallel - data_parallel_size) > 1e-9:
        return

    if "local_batch_size" in common:
        local, passes = common.values()
        yield local, passes, parallel
        return

    local_batch, rest = divmod(common["global_batch_size"], parallel)
    if rest == 0:
        for passes in range(1, min(local_batch, _MOST_PASSES) + 1):
            if local_batch % passes == 0:
                yield local_batch // passes, passes, parallel

"""Prepare observations for a convergence law: which rows tried to reach a target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from scalelab.experiment.rates import LearningRateRule
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.laws.left_out import LeftOut
from scalelab.laws.rows import (
    CurveKey,
    altering_options,
    cells,
    group_rows,
    invalid_reasons,
    known_or,
    numbers,
    strategies,
)
from scalelab.records.columns import OPTION_PREFIX, TARGET_COLUMNS

RULE = "lr_rule"
"""Key of the learning-rate rule that a curve was measured with."""
BASE = "base_learning_rate"
RATE_SETTINGS = (RULE, BASE, "warmup")
"""Keys of the ways to set the learning rate; no step time depends on them."""
WORKERS = "workers"
"""Key of the curves whose convergence depends on the number of workers."""
ALTERING_OPTIONS = "altering_options"
"""Key of the curves whose options alter what is learned from a global batch."""
_COLUMNS = (
    "workload",
    "dataset",
    "parallelism",
    "precision",
    "optimizer",
    "schedule",
    RULE,
    "warmup",
    *TARGET_COLUMNS,
)
# reasons that make step times unfit, but not the number of samples a run needs
_HARMLESS = frozenset(
    {
        "oversubscribed_cores",
        "loopback_nodes",
        "unexpected_placement",
        "shared_node",
        "unsteady_clock",
        "host_paused",
    }
)
_IDENTITY = ("run", "trial_id", "attempt", "repeat", "seed")
_MISSED = np.log(2.0)  # a run that missed its target counts as twice as long
_LEAST = 1e-6  # one minus leverage, below which nothing is left to predict from


def split_by(
    rows: pd.DataFrame, settings: Iterable[str], curve: Sequence[str]
) -> list[str]:
    """Return the settings that tell curves apart; the others are pooled.

    Both ways predict log samples of rows that are left out, from the other rows at the
    same batch: pooled, by their mean; split, by their mean times a factor of the
    setting. With a linear model that needs no further fit: the error of a row that is
    left out is its residual over one minus its leverage.

    Parameters
    ----------
    rows
        The runs to a target: ``samples`` (to the target, or trained when the run
        stopped before it), ``censored``, ``global_batch_size`` and the columns named.
    settings
        The columns in question.
    curve
        The columns that tell curves apart in any case.

    Returns
    -------
    list of str
        Those whose factor predicts rows that are left out better than none does, and
        those whose values have no batch in common, which nothing can compare.

    References
    ----------
    Hastie et al. 2009, *The Elements of Statistical Learning*, equation 7.52 (leaving
    one out of a linear fit).
    """
    found: list[str] = []
    logs = np.log(rows["samples"].to_numpy(float))
    logs = logs + _MISSED * rows["censored"].to_numpy(bool)
    for name in settings:
        values = _indicators(rows, [name])
        places = _indicators(rows, [*curve, *found, "global_batch_size"])
        if values.shape[1] > 1 and _is_better_split(logs, places, values):
            found.append(name)
    return found


def _indicators(rows: pd.DataFrame, names: list[str]) -> np.ndarray:
    groups = rows.groupby(names, dropna=False, sort=False).ngroup().to_numpy()
    return np.eye(groups.max() + 1)[groups]


def _is_better_split(logs: np.ndarray, places: np.ndarray, values: np.ndarray) -> bool:
    both = np.hstack([places, values])
    if np.linalg.matrix_rank(both) == np.linalg.matrix_rank(places):
        return True
    (pooled, is_told), (split, is_told_split) = (
        _left_out(logs, design) for design in (places, both)
    )
    is_told_apart = is_told & is_told_split
    squares = [float((errors[is_told_apart] ** 2).sum()) for errors in (split, pooled)]
    return not is_told_apart.any() or squares[0] < squares[1]


def _left_out(logs: np.ndarray, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of each row were it left out, and whether it can be told."""
    projection = design @ np.linalg.pinv(design)
    free = 1 - np.diag(projection)
    return (logs - projection @ logs) / np.maximum(free, _LEAST), free > _LEAST


def settings_in_question(frame: pd.DataFrame) -> list[str]:
    """Return the options that are neither of a strategy nor of a layout."""
    of_strategies = {
        axis for strategy in set(strategies(frame)) for axis in strategy.options
    }
    known = {*of_strategies, *LAYOUT_PLACEHOLDERS}
    names = map(str, frame.columns)
    options = (name for name in names if name.startswith(OPTION_PREFIX))
    return sorted(n for n in options if n.removeprefix(OPTION_PREFIX) not in known)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRows:
    """The rows that tried to reach a target, and how many were left out."""

    # Has the columns that tell curves apart, ``global_batch_size``, ``normalization``,
    # ``noise_scale`` (samples), ``samples`` (to the target, or trained when the trial
    # stopped) and ``censored``
    frame: pd.DataFrame
    left_out: tuple[LeftOut, ...]
    # The columns that tell curves apart, and settings that were found not to
    columns: Sequence[str] = ()
    pooled: Sequence[str] = ()

    def curves(self) -> dict[CurveKey, pd.DataFrame]:
        """Return the rows of each convergence curve."""
        return group_rows(self.frame, self.columns)


def _columns_of(frame: pd.DataFrame) -> list[str]:
    # options of a strategy tell curves apart where ranks step from different weights
    options = {
        OPTION_PREFIX + option
        for strategy in set(strategies(frame))
        if not strategy.is_synchronous
        for option in strategy.options
    }
    rates = [BASE] if _lists_rates(frame) else []
    names = (*_COLUMNS, *rates, WORKERS, ALTERING_OPTIONS, *sorted(options))
    return [name for name in names if name in frame.columns]


def _lists_rates(frame: pd.DataFrame) -> bool:
    """Tell whether a batch was tried with several base rates, all else alike.

    If so they are a setting; else each batch has the one rate that it was given.
    """
    if BASE not in frame.columns:
        return False
    names = ["global_batch_size", *(n for n in _COLUMNS if n in frame.columns)]
    return bool((frame.groupby(names, dropna=False)[BASE].nunique() > 1).any())


def is_learnt_so(key: CurveKey, asked: pd.DataFrame) -> np.ndarray:
    """Tell which configurations converge as the rows of a curve do."""
    asked = told_apart(asked)
    if dict(key).get(WORKERS) is None:
        suits = np.isnan(numbers(asked, WORKERS))
        altering = dict(key).get(ALTERING_OPTIONS)
        suits &= [cell == altering for cell in cells(asked, ALTERING_OPTIONS)]
        return np.asarray(suits)

    needed = [
        is_equal(asked, name, value)
        for name, value in key
        if name in ("parallelism", WORKERS) or name.startswith(OPTION_PREFIX)
    ]
    return np.asarray(np.all(needed, axis=0))


def told_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Add what convergence depends on besides: workers, and options that alter it."""
    stale = np.array(
        [not strategy.is_synchronous for strategy in strategies(frame)], bool
    )
    if stale.any():
        world = numbers(frame, "world_size")
        ranks = known_or(numbers(frame, "data_parallel_size"), world)
        frame = frame.assign(**{WORKERS: np.where(stale, ranks, np.nan)})

    texts = [
        " ".join(
            # a column in which some rows have no value may hold 2 as 2.0
            f"{name}={value if isinstance(value, str) else f'{value:g}'}"
            for name, value in options.items()
        )
        for options in altering_options(frame)
    ]
    if not any(texts):
        return frame

    column = pd.Series([t or None for t in texts], index=frame.index, dtype=object)
    return frame.assign(**{ALTERING_OPTIONS: column})


def target_rows(observations: pd.DataFrame) -> TargetRows:
    """Choose the rows of trials that tried to reach a target.

    A trial that stopped before its target, or was pruned, gives a lower bound on the
    samples it needs. A row that is given twice (same run, trial and attempt) counts
    once.
    """
    if not {"target_metric", "samples_to_target"} & set(observations.columns):
        return TargetRows(frame=observations.iloc[:0], left_out=())

    observations = at_best_rates(told_apart(_once(observations)))
    columns, settings = _columns_of(observations), settings_in_question(observations)
    rows = observations[[*dict.fromkeys([*columns, *settings])]]

    norm = numbers(observations, "normalization_batch_size")
    reached = numbers(observations, "samples_to_target")
    targets = cells(observations, "target_metric")
    has_target = np.array([isinstance(cell, str) for cell in targets], dtype=bool)
    censored = ~np.isfinite(reached)
    gave_up = (
        is_equal(observations, "outcome", "target_not_reached")
        | is_equal(observations, "reached_target", False)
        | (is_equal(observations, "outcome", "pruned") & has_target)
    )
    rows = rows.assign(
        global_batch_size=numbers(observations, "global_batch_size"),
        normalization=np.where((norm > 0) & np.isfinite(norm), norm, np.nan),
        noise_scale=numbers(observations, "gradient_noise_scale"),
        samples=np.where(censored, numbers(observations, "num_samples"), reached),
        censored=censored,
    )

    asked = np.isfinite(reached) | gave_up
    spoilt = is_spoilt(observations)
    counts = rows[["samples", "global_batch_size"]]
    usable = (np.isfinite(counts) & (counts > 0)).all(axis=1)
    reasons = np.where(spoilt, "validity", np.where(usable, "", "no sample count"))
    reasons = np.where(has_sharded_order(observations), "sharded order", reasons)
    left_out = ((str(reason),) for reason in reasons[asked] if reason)
    rows = rows[asked & (reasons == "")]
    found = split_by(rows, settings, columns) if len(rows) else []
    kept = [name for name in rows.columns if name not in settings or name in found]

    return TargetRows(
        frame=rows[kept],
        left_out=LeftOut.counted(left_out),
        columns=[*columns, *found],
        pooled=[n for n in settings if n not in found and rows[n].nunique() > 1],
    )


ALIKE = 0.1
"""Costs whose logarithms differ by no more are told apart by further seeds only."""
_GAP_OF_NO_METRIC = 1e9


def run_cost(row: Mapping[Any, Any]) -> float:
    """Return what a run needed to its target, in samples, for comparison.

    One that missed it counts as twice as long as it was, and once more for every tenth
    of the target by which it missed. A run that diverged or measured nothing counts as
    infinite.
    """
    if row.get("diverged") or not Outcome(row["outcome"]).is_measurement:
        return float("inf")
    reached, seen = row.get("samples_to_target"), row.get("num_samples")
    if _is_number(reached):
        return float(reached)
    if not _is_number(seen):
        return float("inf")

    last, wanted = row.get("final_metric"), row.get("target_value")
    gap = _GAP_OF_NO_METRIC
    if _is_number(last) and _is_number(wanted):
        gap = abs(last - wanted) / max(abs(wanted), 1e-9)

    return 2.0 * seen * (1 + 10 * gap)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and np.isfinite(value)


def at_best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out the runs of a search at all rates of a batch but the best."""
    is_searched = is_equal(frame, RULE, LearningRateRule.TUNED.value)
    is_searched &= is_equal(frame, "kind", "convergence")
    if not is_searched.any():
        return frame

    runs = frame[is_searched]
    names = [
        *("global_batch_size", *(name for name in _COLUMNS if name in frame.columns)),
        *(name for name in map(str, frame) if name.startswith(OPTION_PREFIX)),
    ]
    costs = [run_cost(row) for row in runs.to_dict("records")]
    by_rate = runs.assign(cost=costs).groupby([*names, BASE], dropna=False)["cost"]
    ranks = {"cost": by_rate.transform("median"), "fewness": -by_rate.transform("size")}
    ranked = runs.assign(**ranks).sort_values([*ranks, BASE])
    best = ranked.groupby(names, dropna=False)[BASE].transform("first")
    return frame.drop(index=runs.index[runs[BASE] != best[runs.index]])


def is_spoilt(frame: pd.DataFrame) -> np.ndarray:
    """Tell in which rows something changed what was learned."""
    reasons = map(invalid_reasons, cells(frame, "validity"))
    return np.array(
        [bool(set(row_reasons) - _HARMLESS) for row_reasons in reasons], dtype=bool
    )


def _once(frame: pd.DataFrame) -> pd.DataFrame:
    if not {"trial_id", "seed"} & set(frame.columns):
        return frame  # equal sample counts of two runs are no duplicate
    counted = ("global_batch_size", "num_samples", "samples_to_target")
    every = {*_IDENTITY, *_COLUMNS, *counted}
    return frame.drop_duplicates(every.intersection(frame.columns))


def is_equal(frame: pd.DataFrame, name: str, value: object) -> np.ndarray:
    """Tell in which rows a column has a value; a missing one has none."""
    matches = [cell is not pd.NA and cell == value for cell in cells(frame, name)]
    return np.array(matches, dtype=bool)


def has_sharded_order(frame: pd.DataFrame) -> np.ndarray:
    """Tell in which rows each rank drew samples from a part of the data of its own.

    Which samples are in a step depends on the number of ranks there, and not on the
    seed and the global batch alone.
    """
    return is_equal(frame, "sample_order", "sharded")


def ended_well(frame: pd.DataFrame) -> np.ndarray:
    """Tell which whole runs ended as they should, on a machine of their own."""
    cells_of = (cells(frame, name) for name in ("outcome", "validity"))
    return np.array(
        [
            not invalid_reasons(validity)
            and (not isinstance(outcome, str) or outcome == "completed")
            for outcome, validity in zip(*cells_of, strict=True)
        ],
        dtype=bool,
    )

"""The difference in step time between two sets of runs of the same configurations.

References
----------
DerSimonian and Laird 1986, *Meta-analysis in clinical trials* (what configurations
differ by besides their scatter); Hartung and Knapp 2001, *A refined method for the
meta-analysis of controlled clinical trials with binary outcome*, section 3 (the
standard error of the mean).
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
from scipy.stats import t as student

from scalelab.errors import SpecError
from scalelab.inputs.numerals import Interval
from scalelab.laws.rows import CONFIGURATION, FitRows, curve_columns
from scalelab.laws.step_time.points import Scatter

MASS = 0.9  # of all intervals here
# By which the log step times of two sweeps of the same differ besides their scatter
_USUAL_SHIFT = 0.01
_BLOCKS, _LEAST_IN_A_BLOCK = 3, 2
_MOST_FREEDOM = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """How much longer a step takes after than before, over the same configurations.

    Parameters
    ----------
    table
        A row per configuration: what tells them apart, ``before_s`` and ``after_s`` in
        the median, ``runs_before``, ``runs_after``, ``change`` (after / before - 1)
        with its ends ``change_lo`` and ``change_hi``.
    log_change, error, freedom
        Mean log change with its standard error and degrees of freedom.
    """

    table: pd.DataFrame
    log_change: float
    error: float
    freedom: float

    @property
    def change(self) -> Interval:
        """The mean change with its 90% interval, relative."""
        reach = self.error * student.ppf((1 + MASS) / 2, self.freedom)
        middle, lo, hi = np.expm1(self.log_change + np.array([0, -reach, reach]))
        return Interval(value=float(middle), lo=float(lo), hi=float(hi))

    def chance_above(self, share: float) -> float:
        """Return the chance that a step takes longer by more than a share."""
        far = (self.log_change - np.log1p(share)) / self.error
        return float(student.cdf(far, self.freedom))


def paired(before: FitRows, after: FitRows) -> Paired:
    """Compare the step times of the configurations that both sets of rows have.

    What tells configurations apart is the division of the batch, and whatever varies
    among the rows of either set.

    Raises
    ------
    SpecError
        If they have none in common.
    """
    names = _telling_apart(before.frame, after.frame)
    sides = [_logs(rows.frame, names) for rows in (before, after)]

    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        raise SpecError(
            "No configuration was measured in both: the same devices, nodes and batch. "
            "Run a trial of one in the other.",
            code="nothing_in_both",
        )

    runs = [[side[key] for key in shared] for side in sides]
    scatter = Scatter.of([*chain(*runs)])
    counts = np.array([[len(values) for values in side] for side in runs])
    spreads = scatter.spreads.reshape(counts.shape)
    medians = np.array([[np.median(values) for values in side] for side in runs])
    changes = medians[1] - medians[0]
    variances = (spreads**2 / counts).sum(axis=0)
    log_change, variance, is_uneven = _mean(changes, variances)
    drift = sum(_drift(rows, names) for rows in (before, after))
    freedoms = scatter.freedoms.reshape(counts.shape).sum(axis=0)
    reach = student.ppf((1 + MASS) / 2, freedoms) * np.sqrt(variances + _USUAL_SHIFT**2)
    ends = np.expm1(changes + np.array([[0], [-1], [1]]) * reach)
    places = pd.DataFrame(shared, columns=names)
    table = places.astype(dict.fromkeys(CONFIGURATION, int)).assign(
        before_s=np.exp(medians[0]),
        after_s=np.exp(medians[1]),
        runs_before=counts[0],
        runs_after=counts[1],
        **dict(zip(("change", "change_lo", "change_hi"), ends, strict=True)),
    )

    of_mean = len(shared) - 1 if is_uneven else freedoms.sum()

    return Paired(
        table=table.sort_values([*CONFIGURATION], ignore_index=True),
        log_change=log_change,
        error=float(np.sqrt(max(variance, drift) + _USUAL_SHIFT**2)),
        freedom=float(np.clip(of_mean, 1.0, _MOST_FREEDOM)),
    )


def _telling_apart(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    every = dict.fromkeys([*curve_columns(before), *curve_columns(after)])
    varying = [
        name
        for name in every
        if any(
            name in frame and frame[name].astype(str).nunique() > 1
            for frame in (before, after)
        )
    ]
    return [*CONFIGURATION, *varying]


def _logs(frame: pd.DataFrame, names: list[str]) -> dict[tuple[str, ...], np.ndarray]:
    keys = frame.reindex(columns=names)
    counts = keys[[*CONFIGURATION]].astype(int)
    texts = keys.assign(**counts).astype(str).itertuples(index=False, name=None)
    found: dict[tuple[str, ...], list[float]] = {}
    for key, time_s in zip(texts, frame["step_time_s"], strict=True):
        found.setdefault(key, []).append(float(np.log(time_s)))
    return {key: np.array(values) for key, values in found.items()}


def _mean(changes: np.ndarray, variances: np.ndarray) -> tuple[float, float, bool]:
    """Return the mean change, its variance, and whether configurations differ in it."""
    weights = 1 / variances
    mean = np.average(changes, weights=weights)
    excess = (weights * (changes - mean) ** 2).sum() - (len(changes) - 1)
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    between = max(0.0, excess / scale) if scale > 0 else 0.0
    weights = 1 / (variances + between)
    mean = np.average(changes, weights=weights)

    variance = 1 / weights.sum()
    if between > 0:
        squares = (weights * (changes - mean) ** 2).sum() / weights.sum()
        variance = max(variance, squares / (len(changes) - 1))

    return float(mean), float(variance), between > 0


def _drift(rows: FitRows, names: list[str]) -> float:
    """Return the variance of the mean of a set by how its thirds differ in time."""
    frame = rows.frame
    started = rows.observations.get("started_at", pd.Series(dtype=object))

    order = started.reindex(frame.index).dropna().sort_values().index
    if len(order) < _BLOCKS * _LEAST_IN_A_BLOCK:
        return 0.0

    logs = np.log(frame["step_time_s"])
    keys = frame.reindex(columns=names).astype(str).agg("/".join, axis=1)
    residuals = (logs - logs.groupby(keys).transform("median")).loc[order]
    means = [block.mean() for block in np.array_split(residuals.to_numpy(), _BLOCKS)]
    return float(np.var(means, ddof=1) / _BLOCKS)

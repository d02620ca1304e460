"""Steadiness of the machine: drift over the sweep, slow nodes, disturbed canaries.

Repeats of a trial differ only in when and where they ran. So log step times are
explained by the configuration, the moment and the node, by least squares over all
repeated throughput trials. The canaries (``plan.expand``) are control trials at
both ends of the sweep and evenly between, which make a drift visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from scalelab.experiment.trial import TrialKind, is_canary
from scalelab.inputs.numerals import Interval, counted, number
from scalelab.laws.rows import (
    CONFIGURATION,
    Observed,
    curve_columns,
    numbers,
    prepared,
)

MATERIAL = 0.02
"""The least relative change that is reported; smaller ones are usual noise."""
UNDECIDED = 0.2
"""The widest interval of a drift that is still informative."""
DISTURBED = 0.1
"""The share by which a disturbed canary takes longer than usual."""
_TAIL = 0.1  # probability on either side of an interval of 80%
_SIGNIFICANCE = (
    0.025  # ... of 95%: one steady sweep in twenty is reported to drift by chance
)
_MAX_NODES_NAMED = 3
_SINGULAR = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowNode:
    """A node that was significantly slower than the other nodes.

    ``excess`` is the relative difference of step times, with its 80% interval.
    """

    host: str
    excess: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Steadiness:
    """Drift, slow nodes and disturbances, estimated from repeated trials.

    Parameters
    ----------
    hours
        Hours from the first to the last start of a repeated trial.
    drift
        Relative change of step times over these hours, with its 80% interval; None if
        there are too few repeats.
    slow_nodes
        Nodes that are slower than the rest by the same rule, with Bonferroni's
        correction for the number of nodes; the slowest first.
    disturbances
        For each canary that took over 10% longer than usual, corrected for drift and
        node: by which share it took longer.
    """

    num_canaries: int
    hours: float
    drift: Interval | None
    is_drifting: bool
    num_hosts: int
    slow_nodes: tuple[SlowNode, ...]
    disturbances: tuple[float, ...]

    @property
    def drift_per_hour(self) -> Interval | None:
        """The drift divided by the hours."""
        if self.drift is None:
            return None
        ends = (self.drift.value, self.drift.lo, self.drift.hi)
        value, lo, hi = (end / self.hours for end in ends)
        return Interval(value=value, lo=lo, hi=hi)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user; empty where the machine was steady."""
        return (*self._of_drift(), *self._of_nodes(), *self._of_disturbances())

    def _of_drift(self) -> Iterator[str]:
        drift, pace = self.drift, self.drift_per_hour
        if drift and pace and self.is_drifting:
            is_slower = drift.value > 0
            became = "The machine slowed down" if is_slower else "The machine sped up"
            change = "longer" if is_slower else "less time"
            hourly = f", {_share(pace.value)} per hour" if self.hours >= 1 else ""
            yield (
                f"{became}: the same trial took {_share(drift.value)} {change} at the "
                f"end of the sweep than at its beginning ({_ends(drift)}){hourly}."
            )
        elif drift is None or drift.hi - drift.lo > UNDECIDED:
            known = ""
            if drift:
                known = (
                    f": step times changed by {drift.lo:+.0%} to {drift.hi:+.0%} "
                    "(80% interval)"
                )
            yield (
                f"Too few control trials ({self.num_canaries}) to tell whether the "
                f"machine slowed down{known}. A smaller measure.canary_every runs more."
            )

    def _of_nodes(self) -> Iterator[str]:
        others = counted(self.num_hosts - 1, "other node")
        for node in self.slow_nodes[:_MAX_NODES_NAMED]:
            yield (
                f"Slow node: trials took {_share(node.excess.value)} longer on "
                f"{node.host} than on the {others} ({_ends(node.excess)})."
            )
        if more := self.slow_nodes[_MAX_NODES_NAMED:]:
            yield f"Further slow nodes: {', '.join(node.host for node in more)}."

    def _of_disturbances(self) -> Iterator[str]:
        if found := self.disturbances:
            trials = counted(self.num_canaries, "control trial")
            yield (
                f"Disturbed: {len(found)} of {trials} took over {_share(DISTURBED)} "
                f"longer than usual, the worst {_share(max(found))} longer. Check "
                "whether others used the node."
            )


def steadiness(observations: Observed) -> Steadiness | None:
    """Estimate the steadiness of the machine; None if no canary has a step time."""
    rows = _repeated(observations)
    canaries = np.array([is_canary(repeat) for repeat in numbers(rows, "repeat")], bool)
    if not canaries.any():
        return None
    repeats = _Repeats(rows)
    excess = repeats.excess[canaries]
    drift, is_drifting = repeats.drift()
    return Steadiness(
        num_canaries=int(canaries.sum()),
        hours=repeats.hours,
        drift=drift,
        is_drifting=is_drifting,
        num_hosts=len(repeats.hosts),
        slow_nodes=repeats.slow_nodes(),
        disturbances=tuple(excess[excess > DISTURBED].tolist()),
    )


def _repeated(observations: Observed) -> pd.DataFrame:
    """Return the timed throughput trials with their moment, hosts and configuration."""
    given = prepared(observations)
    rows = given.frame
    what = rows.groupby([*curve_columns(rows), *CONFIGURATION], dropna=False).ngroup()
    moment = ["kind", "repeat", "started_at", "hosts"]
    rows = rows.assign(configuration=what)
    rows = rows.join(given.observations.reindex(columns=moment))
    is_throughput = rows["kind"].eq(TrialKind.THROUGHPUT).fillna(False).astype(bool)
    return rows[is_throughput & rows["started_at"].notna()]


class _Repeats:
    """A linear model of log step times: configuration, moment and node.

    Trials on several nodes have no term of a node: they say nothing of a single one.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        self._configuration = rows["configuration"].to_numpy()
        since_first = rows["started_at"] - rows["started_at"].min()
        moments_h = since_first.dt.total_seconds().to_numpy(float) / 3600
        self.hours = float(moments_h.max())
        moments = self._within(moments_h / (self.hours or 1.0))
        ran_on = [_only(hosts) for hosts in rows["hosts"]]
        names = sorted({name for name in ran_on if name is not None})
        nodes = np.array([[host == name for name in names] for host in ran_on], float)
        nodes = self._within(nodes.reshape(len(rows), len(names)))
        compared = (nodes**2).sum(axis=0) > _SINGULAR
        self.hosts = [
            name for name, is_one in zip(names, compared, strict=True) if is_one
        ]
        terms = np.column_stack([moments, nodes[:, compared]])
        logs = self._within(np.log(rows["step_time_s"].to_numpy(float)))
        products = terms.T @ terms
        self._inverse = np.linalg.pinv(products, _SINGULAR, hermitian=True)
        self._resolution = self._inverse @ products
        self._effects = self._inverse @ terms.T @ logs
        self._residuals = logs - terms @ self._effects
        rank = round(float(np.trace(self._resolution)))
        num_configurations = len(np.unique(self._configuration))
        self._freedom = len(rows) - num_configurations - rank

    def drift(self) -> tuple[Interval | None, bool]:
        """Return the change from first to last moment, and if it is significant."""
        contrast = np.eye(len(self._effects))[0]
        change = self._interval(contrast, _TAIL)
        return change, _is_significant(self._interval(contrast, _SIGNIFICANCE))

    def slow_nodes(self) -> tuple[SlowNode, ...]:
        """Return the nodes significantly slower than the mean of the others."""
        num_hosts = len(self.hosts)
        found = []
        for position, host in enumerate(self.hosts):
            contrast = np.full(1 + num_hosts, -1 / max(1, num_hosts - 1))
            contrast[0], contrast[1 + position] = 0.0, 1.0
            excess = self._interval(contrast, _TAIL)
            surely = self._interval(contrast, _SIGNIFICANCE / num_hosts)
            if excess and excess.value > 0 and _is_significant(surely):
                found.append(SlowNode(host=host, excess=excess))
        return tuple(sorted(found, key=lambda node: -node.excess.value))

    @property
    def excess(self) -> np.ndarray:
        """By which share each row took longer than the median of its configuration."""
        residuals = pd.Series(self._residuals)
        usual = residuals.groupby(self._configuration).transform("median")
        return np.asarray(np.expm1(residuals - usual))

    def _within(self, values: np.ndarray) -> np.ndarray:
        """Return the differences from the mean of each row's configuration."""
        frame = pd.DataFrame(values)
        means = frame.groupby(self._configuration).transform("mean")
        return (frame - means).to_numpy().reshape(values.shape)

    def _interval(self, contrast: np.ndarray, tail: float) -> Interval | None:
        """Return a combination of effects as a relative change; None if unknown."""
        if self._freedom < 1 or not np.allclose(contrast @ self._resolution, contrast):
            return None
        variance = self._residuals @ self._residuals / self._freedom
        error = math.sqrt(variance * (contrast @ self._inverse @ contrast))
        value = float(contrast @ self._effects)
        reach = float(stdtrit(self._freedom, 1 - tail)) * error
        ends = (value, value - reach, value + reach)
        value, lo, hi = (math.expm1(end) for end in ends)
        return Interval(value=value, lo=lo, hi=hi)


def _only(hosts: object) -> str | None:
    """Return the host of a trial on one node; None if it ran on several."""
    if isinstance(hosts, list | np.ndarray) and len(hosts) == 1:
        return str(hosts[0])
    return None


def _is_significant(change: Interval | None) -> bool:
    if change is None or abs(change.value) < MATERIAL:
        return False
    return change.lo > 0 or change.hi < 0


def _share(share: float) -> str:
    return f"{number(100 * abs(share))}%"


def _ends(change: Interval) -> str:
    least, most = sorted((abs(change.lo), abs(change.hi)))
    return f"80% interval: {_share(least)} to {_share(most)}"

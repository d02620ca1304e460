"""Do measurements agree? With their repeats, with the program's clock, over time.

Repeats of a trial differ only in when and where they ran. So log step times are
explained by the configuration, the moment and the node, by least squares over all
repeated throughput trials. The canaries (``experiment.trial``) are control trials at
both ends of the sweep and evenly between, which make a drift visible. What nothing
repeats or confirms is noted, too.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from scalelab.experiment.job import Job
from scalelab.experiment.trial import TrialKind, is_canary
from scalelab.inputs.numerals import Interval
from scalelab.laws.rows import (
    CONFIGURATION,
    FitRows,
    Observed,
    cells,
    curve_columns,
    numbers,
    prepared,
)
from scalelab.laws.step_time.points import Scatter
from scalelab.plan.first_check import (
    ALONE,
    BOUNDS,
    DOUBTED_BEYOND,
    LOADER,
    MODEL,
    ONE_PROCESS,
    RATE_DISAGREES,
    SAME_DATA,
    UNCONFIRMED,
    UNEXPLAINED,
)
from scalelab.recommend.answer.evidence import DISTURBED, SlowNode, Steadiness
from scalelab.recommend.answer.facts import Fact
from scalelab.records.columns import COLUMNS_BY_NAME, LONG_TRIAL

_MATERIAL = 0.02  # the least relative change that is reported: less is usual noise
_TAIL = 0.1  # probability on either side of an interval of 80%
# ... of 95%: one steady sweep in twenty is reported to drift by chance
_SIGNIFICANCE = 0.025
_TOLERATED = 0.15  # share by which later steps may take another time, unexplained
_SINGULAR = 1e-9
_APART = 2.0  # longest over shortest; what shares a machine stays below
_BEYOND = np.log(DOUBTED_BEYOND)
# What is noted of rows, by the column and its value that say so.
NOTED = (
    *UNCONFIRMED,
    ("one_process", "ranks_witness", ONE_PROCESS),
    ("gpu_throttled", "gpu_throttled", True),
    ("samples_unexplained", "samples_differ", UNEXPLAINED),
)
# What contradicts the samples of a step, likewise.
_CONTRADICTED = (
    ("ranks_witness", SAME_DATA),
    ("ranks_witness", ALONE),
    ("samples_differ", UNEXPLAINED),
)
_SEEN_OF_STEPS = ["first_losses", "data_parallel_size", "samples_of_pass"]
# By which share the samples of two passes over the same data differ at most.
_SAME_LENGTH = 0.01


def contradictions(rows: FitRows) -> pd.DataFrame:
    """Return the configurations whose runs contradict one another, the worst first."""
    what = [*curve_columns(rows.frame), *CONFIGURATION]
    times = rows.frame.groupby(what, dropna=False, sort=False)["step_time_s"]
    found = times.agg(num_runs="count", least_s="min", most_s="max").reset_index()
    factor = found["most_s"] / found["least_s"]
    order = factor[factor >= _APART].sort_values(ascending=False, kind="stable").index
    return found.loc[order].reset_index(drop=True)


def is_among(asked: pd.DataFrame, found: pd.DataFrame) -> np.ndarray:
    """Tell which configurations are among those found, shape (n_rows,)."""
    if found.empty:
        return np.zeros(len(asked), dtype=bool)
    shared = [
        name
        for name in (*curve_columns(asked), *CONFIGURATION)
        if name in found.columns
    ]
    known = {*_keys(found[shared])}
    return np.array([key in known for key in _keys(asked[shared])], dtype=bool)


def _keys(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Return the rows of a frame as tuples, in which missing values are None."""
    return zip(*(_known(frame[name]) for name in frame), strict=True)


def _known(column: pd.Series) -> list[object]:
    values = column.tolist()
    if not column.hasnans:
        return values
    is_missing = column.isna().tolist()
    return [None if is_missing[at] else value for at, value in enumerate(values)]


def disagreeing_rates(rows: FitRows) -> Iterator[Fact]:
    """Note both figures of the rows whose two clocks differ most.

    A row that is marked for it is left out: a count by a factor of the batch is wrong.
    Of others the measured wall time counts.
    """
    frame = rows.observations
    ours, printed_s = (
        numbers(frame, "step_time_s"),
        numbers(frame, "reported_step_time_s"),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(ours / printed_s))

    marked = np.array([RATE_DISAGREES in reasons for reasons in rows.reasons])
    # Where the loader confirms what the probe has measured, the log is no witness.
    witnesses = map(str, cells(frame, "samples_witness"))
    is_confirmed = [witness in (LOADER, MODEL) for witness in witnesses]

    used = rows.is_fit.to_numpy(bool) & ~np.array(is_confirmed)
    for are_asked, is_left_out in ((marked, True), (used, False)):
        if len(asked := np.flatnonzero(are_asked & (apart > _BEYOND))):
            at = asked[np.argmax(apart[asked])]
            yield Fact.of(
                "own_rate_differs",
                num_trials=len(asked),
                world_size=int(numbers(frame, "world_size")[at]),
                global_batch_size=int(numbers(frame, "global_batch_size")[at]),
                reported_step_time_s=float(printed_s[at]),
                step_time_s=float(ours[at]),
                is_left_out=is_left_out,
            )


def equal_losses(rows: FitRows) -> Iterator[Fact]:
    """Note the batches whose trials print the same losses, to all digits.

    Different samples hardly have the same losses: the batch is another than was asked
    for, or each rank trains alone.
    """
    losses = rows.observations.reindex(rows.frame.index, columns=["first_losses"])
    for _, alike in rows.frame.groupby(losses["first_losses"]):
        batches = sorted(alike["global_batch_size"].unique())
        if len(batches) > 1:
            yield Fact.of("equal_losses", batches=[f"{batch:,g}" for batch in batches])


def contradicted_samples(rows: FitRows, job: Job | None) -> pd.DataFrame:
    """Return the rows whose samples per step another source contradicts.

    Ranks train alone or on the same batches, each walks the data of a whole epoch, a
    smaller batch prints the same losses, or nothing explains the samples drawn; or
    nothing explains why later steps of a long trial take another time.
    """
    measured = rows.observations.reindex(columns=_SEEN_OF_STEPS).loc[rows.frame.index]
    losses = measured["first_losses"]
    batches = rows.frame["global_batch_size"]
    found = batches > batches.groupby(losses).transform("min")
    found |= batches.index.isin(having(rows, *_CONTRADICTED).index)
    later = moved_later(rows)["later_differs"]
    found |= batches.index.isin(later.index[later == UNEXPLAINED])
    return rows.frame[found | _walk_all(measured, _epoch_of(job))]


def having(rows: FitRows, *values: tuple[str, str]) -> pd.DataFrame:
    """Return the rows that have one of some values, each given with its column."""
    signs = rows.observations.filter(items=[name for name, _ in values])
    measured = signs.loc[rows.frame.index]
    found = [
        [str(cell) == value for cell in cells(measured, name)] for name, value in values
    ]
    return rows.frame[np.any(found, axis=0)]


def _epoch_of(job: Job | None) -> float:
    """Return the samples of an epoch of a job that counts epochs, else NaN."""
    return job.samples_per_epoch or np.nan if job and job.epochs else np.nan


def _walk_all(measured: pd.DataFrame, samples: float | np.ndarray) -> np.ndarray:
    """Tell in which rows each of several ranks draws so many samples in a pass."""
    parallel = numbers(measured, "data_parallel_size")
    of_rank = numbers(measured, "samples_of_pass") / parallel
    is_alike = np.abs(of_rank / samples - 1) <= _SAME_LENGTH
    return np.asarray((parallel > 1) & is_alike)


def other_samples(rows: FitRows, job: Job | None, batch: int) -> Iterator[Fact]:
    """Note where a step, or an epoch, has other samples than were asked for.

    Of several batches the figures are those of the nearest to ``batch``.
    """
    used = rows.used.reindex(columns=[*COLUMNS_BY_NAME])
    apart = np.abs(numbers(used, "global_batch_size") - batch)
    used = used.iloc[apart.argsort(kind="stable")]
    for why, alike in used.groupby("samples_differ", sort=False):
        row = alike.iloc[0]
        yield Fact.of(
            "samples_differ",
            why=str(why),
            count=len(alike),
            asked=int(row["global_batch_size"]),
            samples_per_step=float(row["samples_per_step"]),
        )

    epoch, of_pass = _epoch_of(job), numbers(used, "samples_of_pass")
    lengths = epoch if np.isfinite(epoch) else numbers(used, "samples_of_dataset")
    if len(alone := used[_walk_all(used, lengths)]):
        yield Fact.of(
            "whole_data",
            in_epochs=bool(np.isfinite(epoch)),
            least=int(alone["data_parallel_size"].min()),
            most=int(alone["data_parallel_size"].max()),
        )
    elif len(other := of_pass[np.abs(of_pass / epoch - 1) > _SAME_LENGTH]):
        yield Fact.of(
            "another_epoch", samples_per_epoch=int(epoch), samples_of_pass=other[0]
        )


def steadiness(given: Observed) -> Steadiness | None:
    """Estimate the steadiness of the machine; None if no canary has a step time."""
    every = given.observations if isinstance(given, FitRows) else given
    if not any(map(is_canary, numbers(every, "repeat"))):
        return None

    rows = _repeated(prepared(given))
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


def _repeated(given: FitRows) -> pd.DataFrame:
    rows = given.frame
    what = rows.groupby([*curve_columns(rows), *CONFIGURATION], dropna=False).ngroup()
    moment = ["kind", "repeat", "started_at", "hosts"]
    measured = given.observations.reindex(columns=moment)
    rows = rows.assign(configuration=what).join(measured)
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
        ran_on = [  # None: on several
            str(hosts[0])
            if isinstance(hosts, list | np.ndarray) and len(hosts) == 1
            else None
            for hosts in rows["hosts"]
        ]

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
        contrast = np.eye(len(self._effects))[0]
        change = self._interval(contrast, _TAIL)
        return change, _is_significant(self._interval(contrast, _SIGNIFICANCE))

    def slow_nodes(self) -> tuple[SlowNode, ...]:
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


def _is_significant(change: Interval | None) -> bool:
    if change is None or abs(change.value) < _MATERIAL:
        return False
    return change.lo > 0 or change.hi < 0


def unknown_scatter(rows: FitRows) -> Iterator[Fact]:
    """Note which runs have too few step times to scatter, and no repeat that tells it.

    A trial's row has an interval of its step time from four of them on. A program that
    reports once per epoch has one for each epoch. What a row of an imported table is
    made of is not known.
    """
    frame = rows.frame
    measured = rows.observations.loc[frame.index]
    is_short = np.isfinite(numbers(measured, "num_steps"))
    is_short &= ~np.isfinite(numbers(measured, "step_time_lo_s"))
    is_trial = np.array(
        [kind in {*TrialKind} for kind in cells(measured, "kind")], dtype=bool
    )

    is_alone = ~frame.duplicated([*curve_columns(frame), *CONFIGURATION], keep=False)
    if len(frame) and not is_trial.any() and is_alone.all():
        yield Fact("no_repeats")
    if number := int((is_short & is_trial & is_alone).sum()):
        yield Fact.of("few_readings", num_runs=number)


def not_settled(rows: FitRows, size: int) -> Iterator[Fact]:
    """Note step times that had not settled, of about so many devices, as bounds."""
    used = rows.observations.loc[having(rows, ("settled", "False")).index]
    used = used.reindex(columns=[*COLUMNS_BY_NAME])
    apart = np.abs(np.log(numbers(used, "world_size") / size))
    used = used.iloc[apart.argsort(kind="stable")]
    for bound, alike in used.groupby("step_time_bound", sort=False, dropna=False):
        row = alike.iloc[0]
        yield Fact.of(
            "not_settled",
            bound=str(bound) if bound in BOUNDS else None,
            count=len(alike),
            world_size=int(row["world_size"]),
            step_time_s=float(row["step_time_s"]),
        )


def long_trials(rows: FitRows) -> Iterator[Fact]:
    """Note how long the trials and the long trials measured, where both ran."""
    is_long = np.array([reasons == (LONG_TRIAL,) for reasons in rows.reasons], bool)
    if is_long.any():
        spent_s = numbers(rows.observations, "num_steps") * numbers(
            rows.observations, "step_time_s"
        )
        yield Fact.of(
            "long_trial",
            num_trials=len(rows.used),
            each_s=float(np.nanmedian(spent_s[rows.is_fit])),
            num_long=int(is_long.sum()),
            long_s=float(np.nanmax(spent_s[is_long])),
        )


def later_steps(moved: pd.DataFrame) -> Iterator[Fact]:
    """Note why later steps of long trials take another time; see `moved_later`."""
    for why, alike in moved.groupby("later_differs", sort=False):
        yield Fact.of(
            "later_differs",
            why=str(why),
            count=len(alike),
            factor=float(alike["later_factor"].iloc[0]),
        )


def ended_early(rows: FitRows) -> Iterator[Fact]:
    """Note trials whose program ended before the steps that were asked for."""
    missed = numbers(rows.used, "steps_missed")
    if count := int((missed > 0).sum()):
        steps = numbers(rows.used, "num_steps")
        at = int(np.nanargmax(missed))
        yield Fact.of(
            "ended_early",
            count=count,
            num_steps=int(steps[at]),
            asked_steps=int(steps[at] + missed[at]),
        )


def moved_later(rows: FitRows) -> pd.DataFrame:
    """Return the rows whose later steps take another time, as a long trial shows.

    A change without a known form counts if it is 15% or more, the error that an answer
    may have, and beyond the 95% interval of the difference of two runs.
    """
    frame = rows.frame
    is_moved = frame["later_differs"].notna()
    if not is_moved.any():
        return frame.loc[is_moved]

    runs = frame.groupby([*curve_columns(frame), *CONFIGURATION], dropna=False)
    scatter = Scatter.of([np.log(times.to_numpy()) for _, times in runs["step_time_s"]])
    reach = float(stdtrit(scatter.freedom, 1 - _SIGNIFICANCE)) * math.sqrt(2)
    is_far = frame["later_factor"].map(math.log).abs() > max(
        reach * scatter.spread, math.log1p(_TOLERATED)
    )
    return frame.loc[is_moved & (is_far | (frame["later_differs"] != UNEXPLAINED))]


def busy_machine(rows: FitRows) -> Iterator[Fact]:
    """Note in how many trials other programs took cores that those waited for."""
    busy = rows.observations.loc[having(rows, ("busy_machine", "True")).index]
    if len(busy):
        worst = busy.sort_values("load_average").iloc[-1]
        yield Fact.of(
            "busy_machine",
            count=len(busy),
            num_trials=len(rows.frame),
            load_average=float(worst["load_average"]),
            cores_at_hand=int(worst["cores_at_hand"]),
        )


def not_witnessed(rows: FitRows) -> Iterator[Fact]:
    """Note which rows rest on ranks, or on samples, that nothing has confirmed."""
    used = rows.used
    for kind, column, doubted in NOTED:
        sizes = [
            int(size)
            for size, witness in zip(
                numbers(used, "world_size"), cells(used, column), strict=True
            )
            if str(witness) == str(doubted)
        ]
        if sizes:
            yield Fact.of(kind, least=min(sizes), most=max(sizes), count=len(sizes))

"""Learning rates and their rules: the one to use, and what was measured of each."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import Interval
from scalelab.kinds.resources import DEVICE_HOURS, Units
from scalelab.laws.convergence.law import parameter_rows
from scalelab.laws.convergence.rows import (
    ALIKE,
    BASE,
    RULE,
    at_best_rates,
    is_equal,
    run_cost,
)
from scalelab.laws.rows import CurveKey, numbers
from scalelab.recommend.answer.evidence import RateRow
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import LearningRatePlan
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.evidence import median_of
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.records.columns import OPTION_PREFIX, TARGET_COLUMNS

_NEAR = np.log(1.25)  # between rates that stand for each other
_MOST_NAMED = 3  # of the batches at which runs missed the target


def learning_rate(
    frame: pd.DataFrame,
    global_batch_size: int,
    settings: Mapping[str, Scalar] = MappingProxyType({}),
) -> LearningRatePlan | None:
    """Return the learning rate at a batch: measured, or scaled by its rule.

    It is scaled from the measured rate at the nearest batch. ``settings`` are the ways
    to set the rate that are known, see ``RATE_SETTINGS``.
    """
    frame = at_best_rates(frame)
    rate, batch = numbers(frame, "learning_rate"), numbers(frame, "global_batch_size")

    known = np.isfinite(rate) & (batch > 0)
    if not known.any() or "lr_rule" not in frame.columns:
        return None

    rules = frame["lr_rule"].fillna("none").astype(str)
    trained = known & ~is_equal(frame, "kind", "throughput")
    known = trained if trained.any() else known
    usual = rules[known].mode().iloc[0]
    wanted = str(settings.get(RULE, usual))

    is_so = known & (rules == wanted)
    for name in settings.keys() - {RULE}:
        is_so &= is_equal(frame, name, settings[name])

    same = np.flatnonzero(is_so)
    if not len(same):
        return None

    nearest = same[np.abs(np.log(batch[same] / global_batch_size)).argmin()]
    if wanted == LearningRateRule.STALENESS and len(np.unique(rate[same])) > 1:
        return None

    value, at_batch = float(rate[nearest]), int(batch[nearest])
    if at_batch != global_batch_size:
        if wanted not in {*LearningRateRule} - {LearningRateRule.TUNED}:
            return None
        value = scaled_rate(
            value,
            rule=LearningRateRule(wanted),
            at_batch=at_batch,
            global_batch_size=global_batch_size,
        )

    return LearningRatePlan(rule=wanted, value=value)


def measured_rates(need: SampleNeed, measured: pd.DataFrame) -> tuple[RateRow, ...]:
    """Return what was measured of each rule at each global batch, by the target.

    ``measured`` are the observations that ``need`` was learned from.
    """
    rows = [row for key in need.tried for row in _of_curve(need, key, measured)]
    return tuple(sorted(rows, key=lambda row: row.global_batch_size))


def _of_curve(
    need: SampleNeed, key: CurveKey, measured: pd.DataFrame
) -> Iterator[RateRow]:
    assert need.law is not None
    others = [dict(other) for other in need.law.curves]
    settings = {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in key
        if name not in TARGET_COLUMNS
        and (name == RULE or any(other.get(name) != value for other in others))
    }

    every = need.tried[key].runs
    for batch in need.tried[key].measured:
        runs = every[every["global_batch_size"] == batch]
        given, is_late = measured.loc[runs.index], runs["censored"].to_numpy(bool)
        arrived, at = runs["samples"][~is_late].to_numpy(float), np.array([batch])
        draws = need.law.draws(key, at, np.array([runs["normalization"].median()]))
        (cap,) = need.caps([int(batch)])
        yield RateRow(
            settings=settings,
            global_batch_size=int(batch),
            learning_rate=median_of(given, "learning_rate"),
            num_runs=len(runs),
            num_reached=len(arrived),
            samples_to_target=None
            if not len(arrived)
            else Interval(
                value=float(np.median(arrived)), lo=arrived.min(), hi=arrived.max()
            ),
            final_metric=median_of(given, "final_metric"),
            probability=float(((draws <= cap) & need.law.reaches(key, at)).mean()),
            within_samples=int(cap) if np.isfinite(cap) else None,
            missed_within_samples=int(runs["samples"][is_late].max())
            if is_late.any()
            else None,
        )


def missed(
    need: SampleNeed,
    rates: tuple[RateRow, ...],
    rows: tuple[OutlookRow, ...],
    measured: pd.DataFrame,
    device_hour_word: str,
) -> Iterator[Fact]:
    """Note how many runs missed the target, and at which batches that are shown."""
    late = need.runs["censored"] if need.uses_law else pd.Series(dtype=bool)
    if not late.any():
        return

    spent_s = numbers(measured.loc[late.index[late]], "allocated_gpu_s")
    hours = float(np.nansum(spent_s)) / 3600
    places = [rate for rate in rates if rate.num_reached < rate.num_runs]
    shown = [
        rate
        for rate in places
        if any(
            rate.global_batch_size == row.batch.global_batch_size
            and rate.settings.items() <= {**rate.settings, **row.settings}.items()
            for row in rows
        )
    ]

    found = places if len(places) <= _MOST_NAMED else shown
    yield Fact.of(
        "missed",
        target=str(need.target),
        num_missed=int(late.sum()),
        num_runs=len(late),
        spent=DEVICE_HOURS.in_words(hours, Units(device_hour_word)) if hours else "",
        at=[
            {
                "global_batch_size": row.global_batch_size,
                "settings": dict(row.settings),
                "num_missed": row.num_runs - row.num_reached,
                "num_runs": row.num_runs,
                "within_samples": row.missed_within_samples,
            }
            for row in found[:_MOST_NAMED]
        ],
    )


def critical_batch(need: SampleNeed, place: int) -> Iterator[Fact]:
    """Note the critical batch of a curve, where its rows determine it."""
    if not need.uses_law:
        return
    rows = parameter_rows(need.tried[need.keys[place]], interval=0.8)
    _, value, lo, hi, _, is_known, _ = next(
        row for row in rows if row[0] == "critical_batch_size"
    )
    if is_known:
        rule = str(need.rate_settings(place).get(RULE, ""))
        yield Fact.of("critical_batch", value=value, lo=lo, hi=hi, rule=rule)


def rates_found(measured: pd.DataFrame, global_batch_size: int) -> Iterator[Fact]:
    """Note the rates that a search found, and what rules make of the smallest batch's.

    The rules are those at ``global_batch_size``, or at the largest batch where that is
    the smallest itself.
    """
    is_searched = is_equal(measured, RULE, LearningRateRule.TUNED)
    runs = measured[is_searched & is_equal(measured, "kind", "convergence")]
    if runs.empty:
        return

    costs = pd.Series(map(run_cost, runs.to_dict("records")), index=runs.index)
    medians = costs.groupby([runs["global_batch_size"], runs[BASE]]).median()
    best = at_best_rates(runs).groupby("global_batch_size")[BASE].first()
    tried = {int(batch): medians.loc[batch] for batch in best.index}
    found = [_found(batch, tried[batch], float(best[batch])) for batch in tried]
    first, last = found[0], max(tried)
    is_beyond = first["global_batch_size"] < global_batch_size in tried
    at_batch = global_batch_size if is_beyond else last
    yield Fact.of(
        "rates_found",
        found=found,
        at_batch=at_batch,
        rules=[
            _beside(rule, first, at_batch, tried[at_batch])
            for rule in (LearningRateRule.LINEAR, LearningRateRule.SQRT)
            if len(tried) > 1
        ],
    )


def _found(batch: int, costs: pd.Series, rate: float) -> dict[str, Any]:
    alike = costs.index[_are_alike(costs)]
    return {
        "global_batch_size": batch,
        "rate": rate,
        "lo": float(alike.min()),
        "hi": float(alike.max()),
        "num_rates": len(costs),
    }


def _are_alike(costs: pd.Series) -> np.ndarray:
    return np.asarray(np.log(costs / costs.min()) <= ALIKE)


def _beside(
    rule: LearningRateRule, first: Mapping[str, Any], batch: int, costs: pd.Series
) -> dict[str, Any]:
    """Tell what a rule comes to, and how the nearest rate did that was tried."""
    at_first = first["global_batch_size"]
    rate = scaled_rate(
        first["rate"], rule=rule, at_batch=at_first, global_batch_size=batch
    )
    apart = np.abs(np.log(costs.index.to_numpy(float) / rate))
    nearest = int(apart.argmin())

    verdict = "holds" if _are_alike(costs)[nearest] else "fails"
    if apart[nearest] > _NEAR:
        verdict = "open"

    return {"rule": rule.value, "rate": rate, "verdict": verdict}

"""The evidence of a run: ways to train and their accuracy, steadiness, whole runs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.inputs.problems import Option
from scalelab.inputs.target import MetricMode
from scalelab.kinds.strategies import strategy_of
from scalelab.laws.convergence.rows import is_equal, is_spoilt
from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    measured_factorisation,
)
from scalelab.laws.rows import (
    CurveKey,
    FitRows,
    altering_options,
    cells,
    curve_label,
    group_rows,
    invalid_reasons,
    numbers,
    strategies,
)
from scalelab.recommend.answer.evidence import (
    BASELINE,
    Evidence,
    RateRow,
    Spread,
    WayRow,
    WholeRun,
)
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.prediction.consistency import steadiness
from scalelab.recommend.question.objective import Constraints
from scalelab.records.columns import OPTION_PREFIX
from scalelab.records.ledger import final_metrics

ACCURACY_GAP = "accuracy_gap"
_SAME = (
    *("workload", "code_hash", "dataset", "precision", "sequence_length"),
    *("target_metric", "num_samples", "global_batch_size", "seed"),
)
_PLACE = ["world_size", "global_batch_size"]
_PERIOD = OPTION_PREFIX + "averaging_period"
_SERVERS = OPTION_PREFIX + "num_servers"


def evidence(
    rows: FitRows,
    compared: pd.DataFrame,
    factorisation: Factorisation | None,
    rates: tuple[RateRow, ...] = (),
) -> Evidence:
    """Return what rows show; ways to train are those of the ``compared`` rows."""
    runs = [] if factorisation is None else factorisation.trials.to_dict("records")
    return Evidence(
        ways=ways(compared),
        rates=rates,
        steadiness=steadiness(rows),
        whole_runs=tuple(
            WholeRun(**{name: float(run[name]) for name in WholeRun.__slots__})
            for run in runs
        ),
    )


def evidence_without_answer(rows: FitRows) -> Evidence:
    """Return what rows show that no answer rests on."""
    return evidence(rows, rows.observations, measured_factorisation(rows))


def ways(observations: pd.DataFrame) -> tuple[WayRow, ...]:
    """Compare the ways to train at every number of devices and global batch.

    A way is a strategy with its options, of which those are named that were varied.
    """
    measured = [
        isinstance(outcome, str) and Outcome(outcome).is_measurement
        for outcome in cells(observations, "outcome")
    ]
    frame = with_accuracy_gaps(observations)[np.array(measured, dtype=bool)]
    if "parallelism" not in frame.columns:
        return ()

    options = sorted(_strategy_options(frame) & {*map(str, frame.columns)})
    by_way = group_rows(frame, ["parallelism", *options])
    if len(by_way) < 2:
        return ()

    varied = _varied(by_way)
    # numbers by size, texts by their letters
    in_order = sorted(
        by_way,
        key=lambda way: [(name, isinstance(value, str), value) for name, value in way],
    )
    rows = [row for key in in_order for row in _rows(dict(key), by_way[key], varied)]
    return tuple(sorted(rows, key=lambda row: (row.world_size, row.global_batch_size)))


def _strategy_options(frame: pd.DataFrame) -> set[str]:
    used = {strategy.name: strategy for strategy in strategies(frame)}.values()
    return {OPTION_PREFIX + axis for strategy in used for axis in strategy.options}


def _varied(by_way: Mapping[CurveKey, Any]) -> set[tuple[Scalar, str]]:
    seen: dict[tuple[Scalar, str], set[Scalar | None]] = {}
    for way in map(dict, by_way):
        name = way.get("parallelism", "")
        for axis in strategy_of(way.get("parallelism")).options:
            option = OPTION_PREFIX + axis
            seen.setdefault((name, option), set()).add(way.get(option))
    return {name for name, values in seen.items() if len(values) > 1}


def _rows(
    way: Mapping[str, Scalar], rows: pd.DataFrame, varied: set[tuple[Scalar, str]]
) -> Iterator[WayRow]:
    name, period = str(way.get("parallelism", "")), way.get(_PERIOD)
    options = {axis.removeprefix(OPTION_PREFIX): value for axis, value in way.items()}

    settings = {
        option.removeprefix(OPTION_PREFIX): value
        for option, value in way.items()
        if (name, option) in varied and option not in (_PERIOD, _SERVERS)
    }
    for key, there in group_rows(rows, _PLACE).items():
        if len(key) < 2:
            continue
        world_size, batch = (int(value) for _, value in key)
        evaluated = there[np.isfinite(numbers(there, "final_metric"))]
        stale, stalest = (
            _known(there, f"staleness_{statistic}") for statistic in ("mean", "max")
        )
        yield WayRow(
            parallelism=name,
            settings=settings,
            world_size=world_size,
            global_batch_size=batch,
            step_time_s=median_of(_timed(there), "step_time_s"),
            time_to_target_s=median_of(there, "time_to_target_s"),
            num_reached=len(_known(there, "time_to_target_s")),
            num_evaluated=len(evaluated),
            final_metric=_spread(evaluated, "final_metric"),
            accuracy_gap=_spread(evaluated, ACCURACY_GAP),
            staleness_mean=float(stale.mean()) if len(stale) else None,
            staleness_max=int(stalest.max()) if len(stalest) else None,
            averaging_period=None if period is None else int(period),
            bubble_share=median_of(there, "bubble_share"),
            num_servers=strategy_of(name).num_servers(world_size, options) or None,
        )


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    is_fit = [not invalid_reasons(cell) for cell in cells(rows, "validity")]
    fit = rows[np.array(is_fit, dtype=bool)]
    of_throughput = fit[np.array([k == "throughput" for k in cells(fit, "kind")], bool)]
    return of_throughput if len(of_throughput) else fit


def _known(rows: pd.DataFrame, name: str) -> np.ndarray:
    values = numbers(rows, name)
    return np.asarray(values[np.isfinite(values)])


def median_of(rows: pd.DataFrame, name: str) -> float | None:
    """Return the median of a column; None where no row has a value."""
    known = _known(rows, name)
    return float(np.median(known)) if len(known) else None


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
    # rows of a table are taken to have trained equally long
    is_told = np.isfinite(numbers(observations, "num_samples"))
    metric[~is_told & ~is_equal(observations, "kind", "imported")] = np.nan
    is_alone = numbers(observations, "world_size") == 1
    alters = np.array(
        [bool(options) for options in altering_options(observations)], bool
    )
    is_plain = is_alone & ~alters
    alone = pd.Series(metric[is_plain]).groupby(keys[is_plain]).mean()
    gap = metric - pd.Series(keys).map(alone).to_numpy(dtype=float)
    gap[is_alone] = np.nan
    return observations.assign(**{ACCURACY_GAP: gap})


def _keys(observations: pd.DataFrame) -> np.ndarray:
    of_strategies = _strategy_options(observations)
    options = [
        name
        for name in map(str, observations.columns)
        if name.startswith(OPTION_PREFIX) and name not in of_strategies
    ]
    columns = [cells(observations, name) for name in (*_SAME, *options)]
    return np.array([repr(key) for key in zip(*columns, strict=True)], dtype=object)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """The ways to train of an answer, as their trained models were evaluated."""

    columns: Collection[str]  # tell ways apart
    # By way, the gap where it loses most; empty where there is no pair of runs
    gaps: dict[CurveKey, Mapping[str, Any]] = field(default_factory=dict)
    # Why a way is ruled out, by way and by the label of its curve
    refused: dict[CurveKey, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        observations: pd.DataFrame,
        curves: Collection[CurveKey],
        limits: Constraints,
    ) -> Self:
        """Read the evaluations of trained models."""
        frame = with_accuracy_gaps(observations[~is_spoilt(observations)])
        found = cls(columns=[name for name in map(str, frame.columns) if _parts(name)])

        evaluated = group_rows(frame, [*found.columns]) if len(frame) else {}
        for key in curves:
            way = found.way(dict(key))
            rows = evaluated.get(way, frame.iloc[:0])
            found.gaps[way] = gap = _largest_loss(rows)
            accepted = numbers(rows, "accepted")

            why = ""
            if limits.accept and not (accepted == 1).any():
                judged = counted(int(np.isfinite(accepted).sum()), "trained model")
                why = f"0 of {judged} accepted"
            elif limits.max_gap is not None and not gap:
                why = "no accuracy gap measured"
            elif limits.max_gap is not None and gap["lost"] > limits.max_gap:
                why = f"{gap['metric']} {gap['mean']:+.3f}"

            if why:
                name = curve_label(key, curves)
                if len(curves) == 1:
                    name = str(dict(key).get("parallelism", name))
                found.refused[way] = found.reasons[name] = why

        if limits.max_gap is not None and not any(found.gaps.values()):
            raise SpecError(
                f"{Option('max_gap', limits.max_gap)} needs a measured accuracy gap: "
                f"the final metric of a run minus that of {BASELINE}.",
                "Add end-to-end trials without a target, on one device and on several.",
                code="no_accuracy_gap",
            )

        return found

    def way(self, config: Mapping[Any, Any]) -> CurveKey:
        """Return the way to train of a configuration."""
        known = ((name, config.get(name)) for name in self.columns)
        return tuple((name, value) for name, value in known if not pd.isna(value))

    def suffices(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which configurations are not ruled out, shape (n_rows,)."""
        ways = map(self.way, asked.to_dict("records"))
        return np.array([way not in self.refused for way in ways], dtype=bool)

    def notes(self, chosen: Mapping[Any, Any]) -> Iterator[Fact]:
        """Note the gap of the chosen way, and the ways that are ruled out."""
        if gap := self.gaps.get(self.way(chosen)):
            yield Fact("accuracy_gap", gap)
        if self.reasons:
            yield Fact.of("ruled_out", reasons=self.reasons)


def _parts(name: str) -> bool:
    axis = name.removeprefix(OPTION_PREFIX)
    is_named = axis != name or name in ("parallelism", "precision")
    return is_named and axis not in LAYOUT_PLACEHOLDERS


def _largest_loss(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the gap on the devices and at the batch where a way loses most."""
    found: list[dict[str, Any]] = []
    paired = rows[np.isfinite(numbers(rows, ACCURACY_GAP))]
    for _, there in paired.groupby(_PLACE) if {*_PLACE} <= {*rows.columns} else ():
        gap, first = there[ACCURACY_GAP], there.iloc[0].dropna()
        row = {str(name): value for name, value in first.items()}
        same = (
            n for n, value in final_metrics(row).items() if value == row["final_metric"]
        )
        metric = next(same, "final metric")
        sign = 1 if MetricMode.usual(metric) == MetricMode.MIN else -1
        found.append(
            {
                "lost": round(sign * gap.mean(), 9) + 0.0,
                "metric": metric,
                **{name: int(row[name]) for name in _PLACE},
                "mean": float(gap.mean()),
                "lo": float(gap.min()),
                "hi": float(gap.max()),
                "count": len(gap),
            }
        )

    return max(found, key=lambda loss: loss["lost"], default={})

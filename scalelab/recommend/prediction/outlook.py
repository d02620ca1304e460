"""The outlook: predicted time, cost and efficiency of the job on each allocation.

Scaling efficiency is samples per second and device, against the fewest measured.

References
----------
Chowdhery et al. 2022, *PaLM*, appendix B (model FLOPs utilisation).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import NotIdentifiableError
from scalelab.inputs.numerals import Interval
from scalelab.inputs.outcome import Support
from scalelab.kinds.resources import RESOURCES, Resource
from scalelab.laws.interval import SEED, central
from scalelab.laws.rows import (
    CONFIGURATION,
    FitRows,
    configurations,
    numbers,
    split_curves,
    strategies,
)
from scalelab.laws.support import weakest
from scalelab.recommend.answer.rows import BatchPlan, OutlookRow, Scaling
from scalelab.recommend.knowledge import MARKS, Knowledge
from scalelab.recommend.money.interruptions import (
    MOST_TIMES,
    Interruptions,
    simulated,
)
from scalelab.recommend.question.candidates import allocation_label
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending, pareto
from scalelab.records.columns import OPTION_PREFIX, PROGRAM_COLUMN

_ROUNDING = 1e-9
_MOSTLY = 0.5  # share of the draws in which a row that is kept ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The smallest measured allocation.

    A row is compared with the fastest that was measured there at the row's global
    batch, else with the fastest of all.
    """

    world_size: int
    # Configurations that were measured there, the fastest first, their global batches,
    # and draws of the samples per second of one run each, shape (n_draws, n_measured)
    measured: pd.DataFrame
    batches: np.ndarray
    rates: np.ndarray

    @classmethod
    def of(
        cls, rows: FitRows, step_times: Callable[[pd.DataFrame], np.ndarray]
    ) -> Self:
        """Find the smallest allocation among the rows of an answer."""
        size = rows.frame["world_size"].min()
        found = [
            frame.loc[frame["world_size"] == size, [*CONFIGURATION]].assign(**dict(key))
            for key, frame in rows.curves.items()
        ]
        known = pd.concat(
            [rows_of_curve for rows_of_curve in found if len(rows_of_curve)],
            ignore_index=True,
        )
        return cls.at(known, step_times)

    @classmethod
    def at(
        cls, known: pd.DataFrame, step_times: Callable[[pd.DataFrame], np.ndarray]
    ) -> Self:
        """Return the baseline at measured configurations of one world size."""
        batches = _batches(known)
        rates = batches / step_times(known)
        order = np.argsort(-np.median(rates, axis=0), kind="stable")
        return cls(
            world_size=int(known["world_size"].iloc[0]),
            measured=known.iloc[order],
            batches=batches[order],
            rates=rates[:, order],
        )

    def place(self, global_batch: float) -> int:
        """Return the place among the measured that a global batch is compared with."""
        return int((self.batches == global_batch).argmax())

    def compare(
        self, row: pd.DataFrame, total: float, step_s: np.ndarray, mass: float
    ) -> tuple[Interval, Scaling | None]:
        """Return the efficiency of one configuration, and what it compares.

        ``total`` is its global batch, and ``step_s`` are draws of the step time of one
        run of it.
        """
        (size,), place = row["world_size"], self.place(total)
        base, of_base = self.measured.iloc[[place]], self.batches[place]
        is_weak = of_base * size == total * self.world_size

        scaling: Scaling | None = "weak" if is_weak else "other"
        if size == self.world_size:
            scaling = None
        elif of_base == total:
            scaling = "strong"

        at = [
            configuration[[*CONFIGURATION]].to_numpy(float).tolist()
            for configuration in (base, row)
        ]
        if at[0] == at[1] and [*split_curves(base)] == [*split_curves(row)]:
            return Interval(value=1.0, lo=1.0, hi=1.0), scaling

        rate = total / step_s / size
        others = self.rates[:, place] / self.world_size
        # drawn about the ratio of the rates that a table shows
        value, shares = float(np.median(rate) / np.median(others)), rate / others
        lo, hi = central(shares * (value / np.median(shares)), mass)
        return Interval(value=value, lo=float(lo), hi=float(hi)), scaling


def _batches(frame: pd.DataFrame) -> np.ndarray:
    return configurations(frame)["global_batch_size"].to_numpy(float)


# By which share what was not measured must be better than what was, by what it rests on
_BETTER_BY = {
    Support.MEASURED: 0.0,
    Support.INTERPOLATED: 0.1,
    Support.EXTRAPOLATED: 0.2,
    Support.NOT_MEASURED: 0.2,
}
_MOST_AT_A_PLACE = 4  # measured candidates, and as many others, that are looked at


def between(draws: np.ndarray, mass: float) -> Interval:
    """Return the median of draws with their central interval."""
    lo, hi = central(draws, mass)
    return Interval(value=float(np.median(draws)), lo=float(lo), hi=float(hi))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The best configuration of each world size, and draws of its time and cost."""

    # One row per world size: configuration, curve columns, ``samples_curve`` (the place
    # of the convergence curve used), ``support``, ``step_time_s``, ``step_time_lo_s``,
    # ``step_time_hi_s``, ``throughput_samples_per_s``, ``is_allowed_batch``,
    # ``is_tried`` (its allocation was measured), ``is_accurate``, ``is_eligible``,
    # ``barred_by``
    frame: pd.DataFrame
    questions: pd.DataFrame
    samples: np.ndarray
    expected_s: np.ndarray
    # What is not of training steps in the time of one run, shape (n_draws, n_rows)
    overhead_s: np.ndarray
    # What interruptions add to the time of one run, of the same shape
    interruptions_s: np.ndarray
    # Time, device-hours and money of one run, each of shape (n_draws, n_rows)
    spent: Spending
    # In each draw: whether the target is reached, and no left-out row was right; and
    # whether every limit is held, too
    reached: np.ndarray
    held: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """World sizes, increasing, shape (n_rows,)."""
        return self.frame["world_size"].to_numpy(float)

    @property
    def is_measured(self) -> np.ndarray:
        """Whether the configuration was measured, shape (n_rows,)."""
        return (self.frame["support"] == Support.MEASURED).to_numpy(bool)

    @property
    def time_s(self) -> np.ndarray:
        """Median time of the job in seconds, shape (n_rows,)."""
        return np.asarray(np.median(self.spent.time_s, axis=0))

    @property
    def probability(self) -> np.ndarray:
        """Probability that every limit holds, shape (n_rows,)."""
        return np.asarray(self.held.mean(axis=0))

    @property
    def margins(self) -> np.ndarray:
        """By what times and amounts count more where less is known, shape (n_rows,)."""
        return 1 + self.frame["support"].map(_BETTER_BY).to_numpy(float)

    @property
    def is_allowed_batch(self) -> np.ndarray:
        """Whether the global batch of each row is in the range, shape (n_rows,)."""
        return self.frame["is_allowed_batch"].to_numpy(bool)

    @property
    def is_eligible(self) -> np.ndarray:
        """Rows that may be chosen, shape (n_rows,)."""
        return self.frame["is_eligible"].to_numpy(bool)

    def between(self, resource: Resource, mass: float) -> list[Interval]:
        """Return how much of a resource each row takes, with its interval."""
        middles = self.spent.medians().of(resource)
        return [
            replace(between(drawn, mass), value=float(middle))
            for drawn, middle in zip(self.spent.of(resource).T, middles, strict=True)
        ]

    def meets(self, limits: Constraints) -> np.ndarray:
        """Mark the rows that may be chosen and hold the limits, shape (n_rows,)."""
        return self.is_eligible & (self.probability >= limits.confidence)

    def take(self, positions: np.ndarray) -> Self:
        """Return some of the rows, by position or by mask."""
        return type(self)(
            frame=self.frame.iloc[positions].reset_index(drop=True),
            questions=self.questions.iloc[positions].reset_index(drop=True),
            samples=self.samples[:, positions],
            expected_s=self.expected_s[:, positions],
            overhead_s=self.overhead_s[:, positions],
            interruptions_s=self.interruptions_s[:, positions],
            spent=self.spent.take(positions),
            reached=self.reached[:, positions],
            held=self.held[:, positions],
        )


def look_ahead(
    candidates: pd.DataFrame,
    knowledge: Knowledge,
    limits: Constraints,
    accepts_unmeasured: bool,
) -> Outlook:
    """Predict the candidates and return the promising ones of each allocation."""
    law, need = knowledge.law, knowledge.need
    answered = law.predict(candidates, limits.interval)
    answered["global_batch_size"] = np.round(
        configurations(candidates)["global_batch_size"]
    ).astype(int)
    whole = knowledge.whole_runs
    position, curve = need.by_curve(answered, are_whole_runs=whole is not None)
    candidates = candidates.iloc[position].reset_index(drop=True)
    answered = answered.iloc[position].reset_index(drop=True)
    samples, reached = need.draws(answered, curve)
    total = answered["global_batch_size"].to_numpy(float)
    of_samples = (
        need.support(answered, curve) if whole is None else whole.support(total)
    )

    if whole is not None:
        samples = whole.draws(total)

    is_allowed = knowledge.rule.allows(answered["global_batch_size"].to_numpy())
    answered = answered.assign(
        support=weakest(answered["support"].to_numpy(), of_samples),
        samples_curve=curve,
        is_allowed_batch=is_allowed,
        is_tried=knowledge.has_tried(answered),
        is_accurate=knowledge.accuracy.suffices(answered),
    )

    rests_here = (answered["support"] != Support.NOT_MEASURED).to_numpy()
    # ranks that were made slow are no choice, but of those who ask for them alone
    slowness = numbers(answered, f"{OPTION_PREFIX}slow_rank_factor")
    is_made_slow = slowness > np.nanmin([*slowness, np.inf])
    may_be = is_allowed & (rests_here | accepts_unmeasured) & ~is_made_slow

    is_doubted = knowledge.is_doubted(answered)
    is_contradicted = knowledge.is_contradicted(answered) & (not accepts_unmeasured)
    marks = knowledge.marks(answered)
    is_marked = np.any([*marks.values()], axis=0)
    barred: dict[str, np.ndarray] = {
        "batch": ~is_allowed,
        "slowed ranks": is_made_slow,
        "contradicted": is_contradicted,
        "doubted": is_doubted,
        "marked": is_marked & (not (is_marked.all() or accepts_unmeasured)),
        "accuracy": ~answered["is_accurate"].to_numpy(bool),
    }
    for is_barred in barred.values():
        # where nothing is free of it, the answer is the closest of them
        rest = may_be & ~is_barred
        may_be = rest if rest.any() else may_be

    answered = answered.assign(is_eligible=may_be, **marks)
    answered["barred_by"] = np.select([*barred.values()], [*barred], default="")

    kept = _promising(answered, samples)
    if not len(kept):
        batches = sorted(set(answered["global_batch_size"].tolist()))
        raise NotIdentifiableError(
            "the number of samples to the target",
            f"Convergence was measured at the global batches "
            f"{list(need.measured_batches())}, throughput at {batches}. "
            "Measure one at a batch of the other.",
        )

    frame = answered.iloc[kept].reset_index(drop=True)
    asked = candidates.iloc[kept].reset_index(drop=True)
    samples, reached = samples[:, kept], reached[:, kept]
    total = frame["global_batch_size"].to_numpy(float)
    one_run = knowledge.step_times(asked) * samples / total

    expected = one_run
    if whole is None:
        expected = law.draws(asked) * np.median(samples, axis=0) / total
        if knowledge.factorisation is not None:
            corrections = np.exp(knowledge.factorisation.draws())
            expected *= np.median(corrections)
            one_run *= corrections

    sizes, nodes = (frame[name].to_numpy(float) for name in ("world_size", "num_nodes"))
    overhead_s = knowledge.overhead.seconds(samples, frame)
    spent = limits.spending(one_run + overhead_s, sizes, nodes)
    reached &= need.within_cap(samples, frame["global_batch_size"].tolist())
    # in half of the draws a row that was left out is right, or steps slow down further
    order = np.random.default_rng(SEED).permutation(len(reached))
    is_unsure = (is_doubted | knowledge.is_at_least(answered))[kept]
    reached &= (order < len(reached) // 2)[:, None] | ~is_unsure

    return Outlook(
        frame=frame,
        questions=asked,
        samples=samples,
        expected_s=expected + np.median(overhead_s, axis=0),
        overhead_s=overhead_s,
        interruptions_s=np.zeros_like(overhead_s),
        spent=spent,
        reached=reached,
        held=limits.held(spent) & reached,
    )


def _promising(answered: pd.DataFrame, samples: np.ndarray) -> np.ndarray:
    """Return the positions of the fastest candidates of each allocation, sorted.

    Measured ones, others that may be chosen, and those that may not, for what they rest
    on or for their batch, each have a share of each program and of each curve of
    samples, so that none displaces another.
    """
    steps = np.median(samples, axis=0) / answered["global_batch_size"].to_numpy(float)
    times = steps * answered["step_time_s"].to_numpy(float)
    is_measured = answered["support"] == Support.MEASURED
    shares = [~answered["is_allowed_batch"], ~answered["is_eligible"], is_measured]
    kind = np.select(shares, [3, 2, 0], default=1)
    apart = ["world_size", "num_nodes", PROGRAM_COLUMN, "samples_curve"]
    shared = answered.columns.intersection(apart)
    table = answered[shared].assign(kind=kind, time_s=times)
    table = table[np.isfinite(times)].sort_values("time_s", kind="stable")
    rank = table.groupby([*shared, "kind"], dropna=False).cumcount()
    most = np.where(table["kind"] >= 2, 1, _MOST_AT_A_PLACE)
    return np.sort(table.index[rank.to_numpy() < most].to_numpy())


def best_of_each_size(every: Outlook, limits: Constraints) -> np.ndarray:
    """Return the position of the best configuration of each world size."""
    sizes, medians = every.frame["world_size"], every.spent.medians()
    is_sure = every.probability >= limits.confidence

    amount = over = medians.time_s
    if limits.limited:
        amount = medians.of(limits.minimised(medians.known))
        over = limits.excess(medians)

    order = np.lexsort(
        (
            every.margins * np.where(is_sure, amount, over),
            np.where(is_sure, 0.0, -np.round(every.probability, 1)),
            ~is_sure,
            ~every.is_eligible,
            ~every.is_allowed_batch,
            sizes,
        )
    )
    return np.asarray(order[~sizes.iloc[order].duplicated()])


def outlook_rows(
    outlook: Outlook,
    chosen: int,
    baseline: Baseline,
    limits: Constraints,
    knowledge: Knowledge,
) -> tuple[OutlookRow, ...]:
    """Return the rows of the answer: medians and intervals of the outlook."""
    spent, time = outlook.spent, outlook.time_s
    has_limits = limits.limited or knowledge.need.uses_law
    middle = np.median(spent.gpu_hours, axis=0)
    on_front = pareto(time, middle)

    def of(draws: np.ndarray) -> Interval:
        return between(draws, limits.interval)

    drawn_s = knowledge.step_times(outlook.questions)
    batches = _batches(outlook.questions)
    taken = {
        resource: outlook.between(resource, limits.interval) for resource in spent.known
    }
    rows = []
    for i, config in enumerate(outlook.frame.to_dict("records")):
        size, nodes = int(config["world_size"]), int(config["num_nodes"])
        following = _next_index(outlook.sizes, i) if knowledge.compares_counts else None
        # One step time stands behind all figures of a row.
        beside_s = outlook.overhead_s[:, i] + outlook.interruptions_s[:, i]
        steps_s = spent.time_s[:, i] - beside_s
        rates = outlook.samples[:, i] / steps_s
        throughput = of(rates)
        batch = BatchPlan(**{name: int(config[name]) for name in BatchPlan.__slots__})
        samples_per_step = knowledge.need.samples_per_step(batch.global_batch_size)
        amounts = {
            resource.name: taken[resource][i] if resource in taken else None
            for resource in RESOURCES
        }

        tokens, peak_share = _per_sample(size, knowledge, config)
        asked = outlook.questions.iloc[[i]]
        efficiency, scaling = baseline.compare(
            asked, batches[i], drawn_s[:, i], limits.interval
        )
        base = baseline.measured.iloc[baseline.place(batches[i])].to_dict()
        rows.append(
            OutlookRow(
                device=knowledge.subject.device,
                allocation=allocation_label(size, nodes),
                world_size=size,
                num_nodes=nodes,
                batch=batch,
                settings=knowledge.settings(config),
                samples_per_step=samples_per_step,
                step_time_s=of(samples_per_step / rates),
                throughput_samples_per_s=throughput,
                throughput_tokens_per_s=_times(throughput, tokens),
                flops_utilization=_times(throughput, peak_share),
                samples=of(outlook.samples[:, i]),
                amounts=amounts,
                scaling_efficiency=efficiency,
                scaling=scaling,
                compared_with=knowledge.settings(base),
                next_world_size=following and int(outlook.sizes[following]),
                next_time_change=_change(time, i, following),
                next_gpu_hours_change=_change(middle, i, following),
                basis=str(config["support"]),
                probability=float(outlook.held[:, i].mean()) if has_limits else None,
                is_pareto=bool(on_front[i]),
                is_eligible=bool(config["is_eligible"]),
                barred_by=config["barred_by"] or None,
                marks=", ".join(name for name in MARKS if config[name]) or None,
                is_chosen=i == chosen,
                is_baseline=size == baseline.world_size,
                is_interruptible=knowledge.subject.is_interruptible,
                energy_source=limits.power.source if limits.power else None,
            )
        )

    return tuple(rows)


def _per_sample(
    world_size: int, knowledge: Knowledge, config: Mapping[Any, Any]
) -> tuple[float | None, float | None]:
    """Return a sample's tokens, and its share of one second of all devices at peak.

    What a device recomputes, or does beside the model's own operations, does not count.
    """
    job = knowledge.need.job
    tokens = (job and job.sequence_length) or knowledge.recorded(
        "sequence_length", config
    )
    if job is None or job.device_peak_flops is None:
        return tokens, None
    flops = job.flops_per_sample or knowledge.recorded("flops_per_sample", config)
    return tokens, flops and flops / (job.device_peak_flops * world_size)


def _times(interval: Interval, factor: float | None) -> Interval | None:
    if factor is None:
        return None
    return Interval(
        value=interval.value * factor, lo=interval.lo * factor, hi=interval.hi * factor
    )


def _next_index(sizes: np.ndarray, index: int) -> int | None:
    doubled = np.flatnonzero(sizes == 2 * sizes[index])
    if len(doubled):
        return int(doubled[0])
    return index + 1 if index + 1 < len(sizes) else None


def _change(values: np.ndarray, index: int, following: int | None) -> float | None:
    return None if following is None else float(values[following] / values[index] - 1)


def interrupted(outlook: Outlook, limits: Constraints, terms: Interruptions) -> Outlook:
    """Return the same rows with what interruptions cost; those that end at all.

    What interruptions cost before, on other terms, is taken out.
    """
    frame = outlook.frame
    nodes = frame["num_nodes"].to_numpy(float)
    is_gang = np.array([way.is_synchronous for way in strategies(frame)], dtype=bool)
    never = ~np.isfinite(outlook.spent.time_s)  # a target that is not reached
    work_s = np.where(never, 1.0, outlook.spent.time_s - outlook.interruptions_s)
    time_s, charged_s = simulated(work_s, nodes, is_gang, terms)
    ends = time_s < MOST_TIMES * work_s * (1 - _ROUNDING)
    beside_s = time_s - work_s
    more_s = np.median(beside_s, axis=0) - np.median(outlook.interruptions_s, axis=0)
    time_s, charged_s = (
        np.where(never, np.inf, seconds) for seconds in (time_s, charged_s)
    )
    spent = limits.spending(time_s, outlook.sizes, nodes, charged_s)
    spent = replace(spent, is_mean=np.ones(len(nodes), dtype=bool))
    changed = replace(
        outlook,
        interruptions_s=beside_s,
        expected_s=outlook.expected_s + more_s,
        spent=spent,
        held=limits.held(spent) & outlook.reached,
    )
    return changed.take(ends.mean(axis=0) > _MOSTLY)

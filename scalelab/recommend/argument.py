"""The argument of an answer: why not the next row, and what the choice rests on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.inputs.outcome import Support
from scalelab.kinds.resources import Units
from scalelab.recommend.answer.facts import Fact, WhyNot
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.comparison import Comparison, may_be_chosen
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.notes import Named
from scalelab.recommend.prediction.consistency import is_among
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.batches import ONE_EPOCH, BatchRule
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import CLEARLY, Spending


def why_not(
    comparison: Comparison,
    rows: Sequence[OutlookRow],
    rule: BatchRule,
    named: Sequence[Named],
    units: Units,
) -> Iterator[Fact]:
    """Note the runner-up: what it takes beside the chosen row, and why not it."""
    printed, at = comparison.printed, comparison.choice.index
    limits, chosen = comparison.limits, rows[comparison.choice.index]
    if len(rows) == 1:
        yield Fact.of("only_count", world_size=chosen.world_size)
        return

    other = _runner_up(comparison, rows, named)
    row, spent = rows[other], printed.spent.medians()
    cost = spent.of(spent.cost)
    speedup = float(spent.time_s[at] / spent.time_s[other])
    needed = 1 + limits.min_marginal_return * (row.world_size / chosen.world_size - 1)
    reason = _reason(comparison, rows, other, rule, speedup >= needed)
    batch = row.batch.global_batch_size
    yield Fact.of(
        "why_not",
        world_size=row.world_size,
        allocation=row.allocation,
        than=chosen.world_size,
        basis=row.basis,
        time_s=row.time_s.value,
        speedup=speedup,
        cost_ratio=float(cost[other] / cost[at]),
        unit=spent.cost.unit(float(cost[at]), units)[1],
        reason=reason,
        barred_by=row.barred_by,
        needed=needed if reason == "pays_too_little" else None,
        probability=row.probability,
        limits=[*limits.in_words(units)],
        global_batch_size=batch,
        largest=rule.largest,
        why_largest=rule.why_largest,
        may_ask=rule.why_largest != ONE_EPOCH,
    )


def _runner_up(
    comparison: Comparison, rows: Sequence[OutlookRow], named: Sequence[Named]
) -> int:
    """Return the place of the row that a reader would ask about.

    That is one that is much faster for little more. With limits it is what takes less,
    were it allowed or sure enough, of these the likeliest; where no limit is met, what
    is likelier to meet them. Else it is the next doubling, or the row before the last.
    """
    at, limits = comparison.choice.index, comparison.limits
    sizes = [row.world_size for row in rows]
    for kind, one, _ in named:
        if kind == "faster":
            return sizes.index(int(one.sizes[0]))

    places = [place for place in range(len(rows)) if place != at]
    if limits.limited:
        chances = comparison.printed.probability
        spent = comparison.printed.spent.medians()
        amounts = spent.of(limits.minimised(spent.known))

        is_better = chances > chances[at]
        if comparison.choice.meets:
            is_better = (amounts < amounts[at]) & ~comparison.printed.meets(limits)

        better = [place for place in places if is_better[place]]
        if better:
            apart = np.abs(np.log(np.array(sizes) / sizes[at]))
            chances = np.round(chances, 2)
            return max(better, key=lambda place: (chances[place], -apart[place]))

    following = rows[at].next_world_size
    if following in sizes:
        return sizes.index(following)

    return at + 1 if at + 1 < len(rows) else at - 1


def _reason(
    comparison: Comparison,
    rows: Sequence[OutlookRow],
    other: int,
    rule: BatchRule,
    pays: bool,
) -> WhyNot:
    """Return why a row is not chosen; of several reasons the first that holds."""
    at, limits = comparison.choice.index, comparison.limits
    row, chosen = rows[other], rows[at]
    is_larger = row.world_size >= 2 * chosen.world_size

    if ineligible := _why_ineligible(row, rule):
        return ineligible
    if (row.probability is not None) and row.probability < limits.confidence:
        return "unlikely"

    if limits.limited:
        spent = comparison.printed.spent.medians()
        amounts = spent.of(limits.minimised(spent.known))
        return "takes_more" if amounts[at] <= amounts[other] else "compared"

    if row.time_s.value >= chosen.time_s.value and row.world_size > chosen.world_size:
        return "slower"
    if is_larger and not pays:
        return "pays_too_little"
    if is_larger and not may_be_chosen(comparison.printed)[other]:
        return "not_measured"

    return "more_pay" if row.world_size < chosen.world_size else "compared"


def _why_ineligible(row: OutlookRow, rule: BatchRule) -> WhyNot | None:
    if row.batch.global_batch_size > rule.largest:
        return "batch_too_large"
    if row.is_eligible:
        return None
    is_belief = row.basis == Support.NOT_MEASURED
    return "not_measured_here" if is_belief else "not_accepted"


def grounds(
    knowledge: Knowledge, comparison: Comparison, config: Mapping[Any, Any]
) -> Iterator[Fact]:
    """Note how the step time, the choice and the samples of an answer are known."""
    yield _step_time(knowledge, comparison.printed, comparison.choice.index)
    yield from in_draws(knowledge, comparison)
    yield from _reached(knowledge, config)


def _step_time(knowledge: Knowledge, printed: Outlook, at: int) -> Fact:
    frame, chosen = knowledge.rows.frame, printed.frame.iloc[[at]]
    times_s = frame["step_time_s"][is_among(frame, chosen)].to_numpy(float)

    apart = None
    if len(times_s) > 1:
        apart = float(np.abs(times_s / np.median(times_s) - 1).max())

    doubted = frame.loc[[*knowledge.doubted.index, *knowledge.uneven]]
    contradicted = is_among(chosen, knowledge.contradicted) | is_among(chosen, doubted)
    return Fact.of(
        "step_time",
        basis=str(chosen["support"].iloc[0]),
        num_runs=len(times_s),
        apart=apart,
        is_contradicted=bool(contradicted.any()),
        is_emulated=knowledge.subject.is_emulated,
    )


def in_draws(knowledge: Knowledge, comparison: Comparison) -> Iterator[Fact]:
    """Note in how many draws of the times the choice is the same, where it meets.

    With limits it is the same where no row that meets them takes clearly less. What was
    chosen by another rule, such as among several kinds of devices, is not judged.
    """
    printed, at, limits = comparison.printed, comparison.choice.index, comparison.limits
    frame = printed.frame
    if not (knowledge.compares_counts and comparison.choice.meets):
        return
    if limits.limited:
        sizes, nodes = (frame[n].to_numpy(float) for n in ("world_size", "num_nodes"))
        spent, meets = (
            limits.spending(printed.expected_s, sizes, nodes),
            printed.meets(limits),
        )
        picked = least_of(spent, meets, at, limits)
        picked_by_medians = least_of(spent.medians(), meets, at, limits)
    else:
        picked = _last_known(printed, printed.expected_s, limits)
        picked_by_medians = _last_known(printed, printed.time_s[None], limits)

    if (picked_by_medians == at).all():
        places = [
            {"world_size": int(size)} for size in frame["world_size"].to_numpy(int)
        ]
        yield choice_in_draws(picked, at, places)


def choice_in_draws(
    picked: np.ndarray, at: int, places: Sequence[Mapping[str, Any]]
) -> Fact:
    """Note how many draws pick the chosen row, and which other row is picked most.

    ``picked`` has the place of the picked row in each draw, shape (n_draws,);
    ``places`` describe the rows.
    """
    others, counts = np.unique(picked[picked != at], return_counts=True)
    instead = dict(places[others[counts.argmax()]]) if len(others) else None
    num_same = int((picked == at).sum())
    return Fact.of(
        "choice_in_draws",
        num_same=num_same,
        num_otherwise=len(picked) - num_same,
        num_draws=len(picked),
        instead=instead,
        num_others=len(others),
    )


def least_of(
    spent: Spending, among: np.ndarray, at: int, limits: Constraints
) -> np.ndarray:
    """Return the place of the marked row that takes least, in each draw.

    The row at ``at`` is returned where no other row takes clearly less.
    """
    amounts = np.atleast_2d(spent.of(limits.minimised(spent.known)))
    allowed = np.where(among, amounts, np.inf)
    is_same = amounts[:, at] <= (1 + CLEARLY) * allowed.min(axis=1)
    return np.where(is_same, at, allowed.argmin(axis=1))


def _last_known(
    printed: Outlook, time_s: np.ndarray, limits: Constraints
) -> np.ndarray:
    """Return the place of the row to choose, in each draw of times."""
    last = last_paying(time_s, printed.sizes, limits.min_marginal_return)
    known = np.flatnonzero(may_be_chosen(printed))
    if not len(known):
        known = np.flatnonzero(printed.is_eligible)
    place = np.searchsorted(known, last, side="right") - 1
    return np.asarray(known[np.maximum(place, 0)])


def _reached(knowledge: Knowledge, config: Mapping[Any, Any]) -> Iterator[Fact]:
    """Note how many runs reached the target at the chosen batch, with its rule."""
    need = knowledge.need
    if not need.uses_law:
        return

    key, batch = need.keys[int(config["samples_curve"])], config["global_batch_size"]
    runs = need.tried[key].runs
    runs = runs[runs["global_batch_size"] == batch]
    yield Fact.of(
        "target_reached",
        target=str(need.target),
        global_batch_size=int(batch),
        num_runs=len(runs),
        num_reached=int((~runs["censored"].astype(bool)).sum()),
    )
